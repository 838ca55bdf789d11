"""How a training job should use GPUs that differ: the width of each layer (DeepPool), the depth of each GPU (JigSaw).

`burst` reads a network and the times of its layers and plans their widths; `spb` orders depths of backpropagation;
`gang` is the GPUs that a job may have. Scores and gains are those of `analysis.placement`.
"""
