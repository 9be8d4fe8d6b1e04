"""An approved model, its bundle and their proof become one release."""
