"""Join what a workspace's stages decided on documents."""
