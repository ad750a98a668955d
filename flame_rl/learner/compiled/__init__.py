"""The fast path: networks of dense layers trained by compiled C."""
