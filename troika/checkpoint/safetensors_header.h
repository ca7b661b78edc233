// The JSON header of a safetensors file, apart from the tensors it describes.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "troika/checkpoint/safetensors.h"

namespace troika::checkpoint {

// One tensor; its bytes are [begin, end) of what follows the header.
struct TensorEntry {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  int64_t begin;
  int64_t end;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> entries;
  Metadata metadata;
};

// The format's own limit, which keeps a flipped length from asking for memory.
constexpr int64_t kMaxHeaderBytes = 100'000'000;
// Limits tensors plus metadata. A header takes memory for its text and at most 1 KiB for
// each name, which has at most 64 dimensions.
constexpr size_t kMaxNames = size_t{1} << 20;

// The format's name of a dtype ("BF16"), or nothing where it has none.
std::optional<std::string_view> dtype_name(at::ScalarType dtype);
std::optional<at::ScalarType> dtype_named(std::string_view name);

// Padded with spaces to a multiple of 8 bytes. `file` is for messages.
std::string write_header(const SafetensorsHeader& header, const std::string& file);

// Throws Error for anything but a complete header whose entries cover `data_bytes` exactly, without
// gap or overlap, and for a name or a field that is there twice. Takes time in proportion to the
// header's length.
SafetensorsHeader parse_header(std::string_view json, int64_t data_bytes, const std::string& file);

}  // namespace troika::checkpoint
