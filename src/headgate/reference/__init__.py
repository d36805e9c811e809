"""The API reference that both planes serve, and what their OpenAPI documents are made of."""
