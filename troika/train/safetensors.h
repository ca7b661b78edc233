// Named tensors in a safetensors file (huggingface.co/docs/safetensors): an 8-byte little-endian
// header length, a JSON header `{name: {dtype, shape, data_offsets}}` with `__metadata__` for
// strings, then the tensors' bytes. Python reads it with the `safetensors` package.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "troika/train/crc32c.h"

namespace troika::train {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
using Metadata = std::map<std::string, std::string>;

// Writes the file whole or not at all. The header keeps the order given; the data is laid out by
// descending element size, so every tensor is aligned. Tensors may live on any device and need not
// be contiguous; one at a time is copied to the host. Throws Error for a duplicate or non-UTF-8
// name, and for a tensor the format cannot hold (a dtype it lacks, sparse, undefined). Returns what
// the file is.
FileDigest save_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                            const Metadata& metadata = {});

// All tensors of the file, in the order of its header, on the host. Every byte of the header is
// validated before any tensor is made; an Error names the file and the tensor.
NamedTensors load_safetensors(const std::filesystem::path& path);

// The strings of `__metadata__` alone. The header is read and validated as a whole, no tensor is.
Metadata read_safetensors_metadata(const std::filesystem::path& path);

// Copies `source` into the tensors of `destination` with the same name, in place and on their
// device; dtypes are converted. Both must have the same names and shapes, else Error (naming what
// is missing, unexpected or of another shape) and no tensor has changed. `origin` says in messages
// where `source` comes from, e.g. a file.
void load_into(const NamedTensors& destination, const NamedTensors& source,
               std::string_view origin);

}  // namespace troika::train
