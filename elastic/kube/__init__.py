"""Effect. Kubernetes: manifests for KubeRay, what they must hold to, and a client; nothing here knows Ray or torch."""
