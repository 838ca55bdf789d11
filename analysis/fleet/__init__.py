"""The GPUs of a fleet beside each other, for figures: in one workload, over a campaign, from campaign to campaign."""
