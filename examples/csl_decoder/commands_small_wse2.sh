#!/usr/bin/env bash
set -e
cslc --arch=wse2 ./layout.csl --fabric-dims=13,14 --fabric-offsets=4,1 \
  --params=columns:6,heads:4,groups:1,head_size:16,hidden:32,inner:72,slots:4 -o out --memcpy --channels=1
cs_python run.py --name out
