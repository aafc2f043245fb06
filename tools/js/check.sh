#!/usr/bin/env bash
# Checks the types of the page's scripts (plugins/*.js): JSDoc, against React's types and what OpenAPI says of the API.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
js=.local/js
AIRFLOW_HOME=$PWD/$js/airflow AIRFLOW__CORE__LOAD_EXAMPLES=False AIRFLOW__LOGGING__LOGGING_LEVEL=ERROR .local/venv/bin/python -c '
import json, sys
from airflow_ft.plugins.api import create_app
json.dump(create_app().openapi(), open(sys.argv[1], "w"))' $js/openapi.json
$js/node $js/node_modules/openapi-typescript/bin/cli.js $js/openapi.json --output $js/answers.d.ts --default-non-nullable >$js/log 2>&1 \
  || { cat $js/log >&2; exit 1; }
$js/node $js/node_modules/typescript/bin/tsc --project tools/js/tsconfig.json
