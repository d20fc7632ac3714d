"""Long prompts beside interactive requests: in one fleet, in two pools, in two that spill."""
