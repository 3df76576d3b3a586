"""The values that users and the other packages share: images, calls, specifications of pools. No side effects."""
