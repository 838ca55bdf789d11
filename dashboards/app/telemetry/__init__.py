"""The page Telemetry: what any GPUs did at any time, and what they do now.

`asked` says what an address asks for, `controls` changes the address, `showing` draws what it says, `live` adds what
came since.
"""
