"""Run scorers and encoders: model files, GPU slots, pools of processes, prefetching."""
