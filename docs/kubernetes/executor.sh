#!/usr/bin/env bash
# Starts a Spark executor in an image that has pip's pyspark: what entrypoint.sh does in Spark's own images.
# Spark gives the variables (org.apache.spark.deploy.k8s.Constants).
set -euo pipefail

home=${SPARK_HOME:-$(python -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')}
options=()
while IFS= read -r name; do
  options+=("${!name}")
done < <(compgen -v SPARK_JAVA_OPT_ | sort -t _ -k 4 -n)

exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" "${options[@]}" \
  "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
  -cp "${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}$home/jars/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" \
  --executor-id "$SPARK_EXECUTOR_ID" \
  --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" \
  --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
  --podName "$SPARK_EXECUTOR_POD_NAME"
