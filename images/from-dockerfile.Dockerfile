# Any base with a Python of the client's minor version will do; the argument lets another one stand in.
ARG SKYWARD_BASE=python:3.11-slim
FROM ${SKYWARD_BASE}
RUN mkdir -p /srv/models && echo "made by a Dockerfile" > /srv/models/README
ENV MODELS=/srv/models
