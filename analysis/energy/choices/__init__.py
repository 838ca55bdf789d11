"""What the choice of GPU, power cap and hour costs: excess of jobs by place, and quotes for other choices."""
