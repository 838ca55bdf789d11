"""Which setting of a GPU saves energy within a bound on time: numpy alone, because it runs on nodes.

`process.py` is a Gaussian process; `search.py` asks for the next setting to measure and is told what came of it
(`suggest`, `tell`, `answer`). Nothing here measures or sets anything: `jobs/tuning.py` joins it with the probes.
"""
