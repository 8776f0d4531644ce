#!/usr/bin/env bash
# Two groups of two heads on 16 x 5 PEs; no piece of a vector is as long as the others.
set -e
cslc --arch=wse3 ./layout.csl --fabric-dims=12,18 --fabric-offsets=4,1 \
  --params=columns:5,heads:4,groups:2,head_size:16,hidden:32,inner:70,slots:2 -o out --memcpy --channels=1
cs_python run.py --name out --filled 3 --tokens 6
