"""`python -m mpx.bench`: each value of `what` is one file with what it times (measure), prints (show) and
draws (plot).

    measure(device, size, announce)   yields a row per kernel, all with the same keys; announce: called with
                                      the next part
    show(about, rows)                 prints tables; about: what, device, exclusive, environment,
                                      folder
    plot(about, rows)                 a mpx.render.picture.Picture, or None

formats.py: the number formats' reference card. gemm.py: matrix products, dense and 2:4. attention.py: scaled
dot-product attention. conv.py: convolutions of a ResNet. lstm.py: a two-layer LSTM. triton.py: the making of
2:4 masks. blas.py: COPY, AXPY, GEMV and GEMM beneath the roofs. work.py checks a kernel against float64 and
times it. tables.py prints tables.
"""
