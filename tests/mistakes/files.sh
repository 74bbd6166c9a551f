# shellcheck shell=bash
# What every folder of a mistake begins with.
cat >job.yaml <<'END'
name: small
model: {kind: mlp, hidden: [4]}
data: {kind: synthetic, seq_len: 12, pred_len: 4, rows: 300, split: [200, 50, 50]}
train: {epochs: 1, batch_size: 32}
cluster: {workers: 1, lanes: 2}
END
cat >live.yaml <<'END'
name: live
model: {kind: mlp, hidden: [4]}
data: {kind: synthetic, seq_len: 12, pred_len: 4, rows: 300, split: [200, 50, 50]}
train: {epochs: 1000000, batch_size: 32, evaluate: false}
cluster: {workers: 1, shards: 2, replicas: 2, lanes: 2}
END
cat >table.yaml <<'END'
name: table
model: {kind: mlp, hidden: [4]}
data: {kind: table, path: data.csv, columns: [x], targets: [y], test_every: 4}
train: {epochs: 1, batch_size: 8}
cluster: {workers: 1, lanes: 2}
END
cat >series.yaml <<'END'
name: series
model: {kind: dlinear, kernel_size: 3}
data: {kind: csv, path: series.csv, target: y, seq_len: 4, pred_len: 2, split: [40, 20, 20]}
train: {epochs: 1, batch_size: 8}
cluster: {workers: 1, lanes: 2}
END
cat >panel.yaml <<'END'
name: panel
model: {kind: tft, d_model: 4, heads: 2}
data: {kind: panel, path: series.csv, time: date, targets: [y], derive: ["h = hour(date)"], known: [h],
       seq_len: 4, pred_len: 2, split: [40, 20, 20]}
train: {epochs: 1, batch_size: 8}
cluster: {workers: 1, lanes: 2}
END
cat >npy.yaml <<'END'
name: npy
model: {kind: mlp, hidden: [4]}
data: {kind: npy, path: x.npy, target_path: y.npy}
train: {epochs: 1, batch_size: 4, evaluate: false}
cluster: {workers: 1, lanes: 2}
END
cat >idx.yaml <<'END'
name: idx
model: {kind: mlp, hidden: [4]}
data: {kind: idx, path: images}
train: {epochs: 1, batch_size: 4, loss: cross_entropy, evaluate: false}
cluster: {workers: 1, lanes: 2}
END
cat >binary.yaml <<'END'
name: binary
model: {kind: mlp, hidden: [4]}
data: {kind: binary, path: rows.bin, dtype: uint8, input_shape: [3], target_shape: [1]}
train: {epochs: 1, batch_size: 4, evaluate: false}
cluster: {workers: 1, lanes: 2}
END
cat >tensors.yaml <<'END'
name: tensors
model: {kind: mlp, hidden: [4]}
data: {kind: tensors, path: data.safetensors}
train: {epochs: 1, batch_size: 2, evaluate: false}
cluster: {workers: 1, lanes: 2}
END
awk 'BEGIN { print "x,y,name"; for (i = 0; i < 40; i++) printf "%d,%g,%s\n", i, i / 4, i % 2 ? "a" : "b" }' >data.csv
awk 'BEGIN { print "date,x,y"
    for (i = 0; i < 100; i++) printf "2016-07-%02d %02d:00:00,%d,%g\n", 1 + i / 24, i % 24, i % 7, i / 4 }' >series.csv
# array FILE SHAPE BYTES: float32 zeros of that shape
array() {
    local header="{'descr': '<f4', 'fortran_order': False, 'shape': $2, }"
    { printf '\223NUMPY\001\000\166\000'; printf '%-117s\n' "$header"; head -c "$3" /dev/zero; } >"$1"
}
array x.npy '(8, 3)' 96
array y.npy '(8, 1)' 32
head -c 32 /dev/zero >rows.bin
mkdir images
# idx FILE HEADER BYTES: a header in hexadecimal, then zeros
idx() {
    local bytes="$2" i
    for ((i = 0; i < ${#bytes}; i += 2)); do printf '%b' "\\x${bytes:i:2}"; done >"images/$1"
    head -c "$3" /dev/zero >>"images/$1"
}
idx train-images-idx3-ubyte 00000803000000080000000200000002 32
idx train-labels-idx1-ubyte 0000080100000008 8
idx t10k-images-idx3-ubyte 00000803000000040000000200000002 16
idx t10k-labels-idx1-ubyte 0000080100000004 4
# safetensors FILE HEADER BYTES
safetensors() {
    { printf '%b\0\0\0\0\0\0' "$(printf '\\x%02x\\x%02x' $((${#2} % 256)) $((${#2} / 256)))"
      printf '%s' "$2"; head -c "$3" /dev/zero; } >"$1"
}
safetensors data.safetensors "$(tr -d '\n' <<'END'
{"x":{"dtype":"F32","shape":[4,3],"data_offsets":[0,48]},
"y":{"dtype":"F32","shape":[4,1],"data_offsets":[48,64]}}
END
)" 64
safetensors half.safetensors '{"x":{"dtype":"I32","shape":[4,3],"data_offsets":[0,48]}}' 48
mkdir runs
# On a busy machine six steps may be over before a checkpoint of the third is ordered: the second one waits.
kelp train job.yaml --run runs/done --no-plots --set checkpoint.steps=3 --fault worker-0:stall@step=2
ln -sfn "done" runs/latest
rm -rf runs/done/etcd
