# docker build --target gpu -t ray-elastic:0.1.0 .
# docker build --target cpu --build-arg CPU_INDEX=<index of torch's CPU wheels> -t ray-elastic:0.1.0 .
# The base is any image of Debian or Ubuntu with Python 3.11 or newer; pin it by its digest for releases.
ARG BASE=python:3.11.13-slim-bookworm

FROM ${BASE} AS source
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY requirements requirements
COPY docker docker
COPY examples examples
COPY elastic elastic

FROM source AS build-cpu
ARG CPU_INDEX=""
# pip's own index has torch for CUDA: gigabytes that no machine without a GPU needs.
RUN TORCH_INDEX="${CPU_INDEX:?give --build-arg CPU_INDEX=<index of the CPU wheels of torch>}" sh docker/install.sh /opt/elastic

FROM source AS build-gpu
ARG GPU_INDEX=""
RUN TORCH_INDEX="${GPU_INDEX}" sh docker/install.sh /opt/elastic

FROM ${BASE} AS runtime
# KubeRay's probes call bash and wget inside the container.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bash wget \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home ray
ENV PATH=/opt/elastic/bin:${PATH} PYTHONUNBUFFERED=1 RAY_USAGE_STATS_ENABLED=0
COPY examples /app/examples
WORKDIR /app

FROM runtime AS cpu
COPY --from=build-cpu /opt/elastic /opt/elastic
USER 1000

FROM runtime AS gpu
# torch brings CUDA's libraries; the machine has the driver. NVIDIA's container runtime puts it where it is found, and asks
# for the first two; GKE mounts it at /usr/local/nvidia, where no linker and no shell looks.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib64 PATH=${PATH}:/usr/local/nvidia/bin
COPY --from=build-gpu /opt/elastic /opt/elastic
USER 1000
