"""What stages hand over: typed directories, each with a manifest."""
