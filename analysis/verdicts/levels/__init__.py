"""How slow each GPU is in one figure: from runs to sittings to a level, and what healthy GPUs look like."""
