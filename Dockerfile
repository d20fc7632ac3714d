# penstock in a container. Build: docker build --tag penstock:0.1.0 .
#
# Runs as uid 65532 on a read-only root: nothing is written but stdout and stderr. Mount a
# configuration and name it (serve --config FILE), or give backends (serve --backend URL).
# The tags are pinned; the interpreter is of the line that the tests run on. Both stages must
# name the same one: extensions are built for it, and the environment of the first stage links to
# the interpreter of the second.

# The full image has the C compiler that the data path needs; nothing of it is shipped.
FROM python:3.11.14-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
# .dockerignore lets through what the wheel is made of and nothing else.
COPY . .
RUN PENSTOCK_COMPILE=1 pip wheel --no-cache-dir --wheel-dir /wheels .
# Its own environment, without pip. A build that fell back to the interpreted files is an error
# here, not a surprise in production. With -I Python looks at what is installed, not at /src.
RUN python -m venv --without-pip /app \
    && pip --python /app/bin/python install --no-cache-dir --no-index --find-links /wheels /wheels/penstock-*.whl \
    && /app/bin/python -I -c "from penstock import proxy; assert proxy.compiled()"

FROM python:3.11.14-slim-bookworm
LABEL org.opencontainers.image.title="penstock" \
      org.opencontainers.image.description="Token-aware proxy in front of a fleet of vLLM servers" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0"
COPY --from=build /app /app
# Modules are compiled to bytecode already, and a read-only root could not take them.
ENV PATH=/app/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1
# A number, so that Kubernetes can tell it is not root.
USER 65532:65532
EXPOSE 8080 9321
# The process, not its fleet: no restart helps a proxy whose GPUs are down. For an admin port other
# than 9321, set PENSTOCK_ADMIN__PORT rather than the key in the file. urllib would obey http_proxy.
HEALTHCHECK --interval=15s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import http.client, os, sys; admin = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('PENSTOCK_ADMIN__PORT', '9321')), timeout=2); admin.request('GET', '/livez'); sys.exit(admin.getresponse().status != 200)"]
ENTRYPOINT ["penstock"]
CMD ["serve"]
