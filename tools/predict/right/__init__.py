"""Will it be right? A model in f16 against itself in f32, layer by layer, and the layers to keep in f32.

`result`      the findings: the verdict, layers with their trouble, outputs, the proposed list
`samples`     the inputs: given ones, or generated ones that are meaningful to the model
`points`      where a rewritten model rounds: the layers of each rounding, and their inputs
`measuring`   one tensor in f16 against the same in f32
`running`     both models executed by OpenVINO's CPU runtime, with every rounding observed
`causes`      which layers cause wrong outputs, and which inherit the error
`repairing`   the smallest list of f32 layers that makes it right
`judging`     all of it, in that order

`measuring` and `causes` decide from figures alone.
"""
