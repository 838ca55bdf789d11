"""Who had which GPU: Slurm's accounting and the tags of prologs and epilogs, as rows of the table `jobs`."""
