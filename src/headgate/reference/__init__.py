"""The API reference that both planes serve, and the parts of their OpenAPI documents."""
