"""Pruning: patterns choose which values of a weight stay, layers choose which weights are pruned, masks keep
the pruned values at zero, and recipes choose when.

    pattern = NofM(2, 4)                                        # patterns.py; tiles.py
    masks = Masks(weights(model, pattern, Rules()), pattern)    # layers.py, masks.py
    masks.prune([optimizer])                                    # once, when the model is trained
    …
    loss.backward()
    masks.mask_gradients()                                      # before every optimizer.step()
    optimizer.step()
    …
    assert masks.verify([optimizer]) == []

callback.py runs these steps during a Lightning training, at the steps of a plan, as one of the recipes in
recipes.py prescribes; lightning_sparsity.py is mpx.Sparsity, the same for any Lightning Trainer. choose.py
builds these objects from settings, and has the masks by NVIDIA's apex. mpx's own learning rate then starts
again (mpx/training/pruning.py); a project's goes on.

    mask_launch.py   2:4 masks of many weights by one Triton kernel
    permutation/     reorders channels before the pruning, so that it keeps more; imported when asked for
    kernels.py       which layers a 2:4 kernel can serve
    coverage.py      what result.json says of the pruning, and how much each layer's pruning costs

A new recipe needs a class in recipes.py, its name in choose.py and mpx/settings/fields.py, the keys that it
reads in mpx/settings/sparsity.py, and a line in each file of conf/sparsity/, in docs/sparsity.md and in the
docstring of mpx.Sparsity.
"""
