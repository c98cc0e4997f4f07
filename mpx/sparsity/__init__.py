"""Pruning: patterns (which values of a weight stay), layers (what is pruned and why not), masks (held at every step), recipes (when).

    pattern = NofM(2, 4)                                        # patterns.py; tiles.py, unstructured.py
    masks = Masks(weights(model, pattern, Rules()), pattern)    # layers.py, masks.py
    masks.prune([optimizer])                                    # once, when the model is trained
    …
    loss.backward()
    masks.mask_gradients()                                      # before every optimizer.step()
    optimizer.step()
    …
    assert masks.verify([optimizer]) == []

recipe.py does that beside a Lightning Trainer, by one of the recipes of recipes.py and sr_ste.py.
"""
