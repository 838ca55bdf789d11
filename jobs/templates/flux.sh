#!/bin/bash
# This file was never run on a real Flux: read it before you use it.
# Measures all GPUs of one node. Submit it with `flux batch FILE`; docs/campaigns.md says how to change it.
# flux: --job-name={{label|sh}}
# flux: --nodes=1
# flux: --nslots=1
# flux: --gpus-per-slot={{gpus}}
# flux: --exclusive
# flux: --requires=host:{{node|sh}}
# flux: --time-limit={{minutes}}m
# flux: --queue={{partition|sh}}
# flux: --bank={{account|sh}}
# flux: --urgency=1
# flux: --output={{output|sh}}
# flux: {{option}}

# --urgency=1 is the lowest priority that still starts.

{{setup}}

# No `flux run`: its tasks may see only a part of the GPUs. With exec, signals reach whorl, which then stores what is
# complete.
exec {{command}}
