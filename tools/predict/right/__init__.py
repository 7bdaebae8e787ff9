"""Will it be right? A model in f16 against itself in f32, layer by layer, and what to keep in f32.

`result`      what is found: the verdict, layers with what happens to them, outputs, the proposed list
`samples`     the inputs: given ones, or generated ones that mean something to the model
`points`      where a rewritten model rounds: the layers of each rounding, and what they read
`measuring`   one tensor in f16 against the same in f32
`running`     both models executed by OpenVINO's CPU runtime, with every rounding looked at
`causes`      which layers cause what is wrong, and which inherit it
`repairing`   the smallest list of layers in f32 that makes it right
`judging`     all of it, in that order

`measuring` and `causes` decide from figures alone.
"""
