#!/usr/bin/env bash
# The sizes of Qwen2.5-0.5B on 36 x 38 PEs.
set -e
cslc --arch=wse3 ./layout.csl --fabric-dims=45,38 --fabric-offsets=4,1 \
  --params=columns:38,heads:14,groups:2,head_size:64,hidden:896,inner:4864,slots:4 -o out --memcpy --channels=1
cs_python run.py --name out --filled 64 --tokens 2
