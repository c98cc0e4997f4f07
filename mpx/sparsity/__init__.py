"""Pruning: patterns choose which values of a weight stay, layers choose which weights are pruned, masks keep the pruned values at zero, and
recipes choose when.

    pattern = NofM(2, 4)                                        # patterns.py; tiles.py, unstructured.py
    masks = Masks(weights(model, pattern, Rules()), pattern)    # layers.py, masks.py
    masks.prune([optimizer])                                    # once, when the model is trained
    …
    loss.backward()
    masks.mask_gradients()                                      # before every optimizer.step()
    optimizer.step()
    …
    assert masks.verify([optimizer]) == []

The Lightning callback in recipe.py runs these steps during training, as one of the recipes in recipes.py and sr_ste.py prescribes.
"""
