"""`python -m mpx.bench`: each value of `what` is one file with what it times (measure), prints (show) and draws (plot).

    measure(device, size, announce)   yields a row per kernel, all with the same keys; announce: called with the next part
    show(about, rows)                 prints tables; about: what, device, exclusive, cpu_busy, environment, folder
    plot(about, rows)                 a mpx.render.picture.Picture

work.py checks a kernel against float64 and times it. tables.py prints tables.
"""
