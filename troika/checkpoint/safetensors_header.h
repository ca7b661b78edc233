// The JSON header of a safetensors file, without the tensors that it describes.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "troika/checkpoint/safetensors.h"

namespace troika::checkpoint {

// One tensor; its bytes are [begin, end) of the data after the header.
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

// The format's own limit. It prevents a corrupt length from allocating too much memory.
constexpr int64_t kMaxHeaderBytes = 100'000'000;
// The limit of tensors plus metadata entries. Parsing a header takes memory for its text and at
// most 1 KiB for each name; a tensor has at most 64 dimensions.
constexpr size_t kMaxNames = size_t{1} << 20;

// The format's name of a dtype ("BF16"); empty if the format lacks it.
std::optional<std::string_view> dtype_name(at::ScalarType dtype);
std::optional<at::ScalarType> dtype_named(std::string_view name);

// Returns the header padded with spaces to a multiple of 8 bytes. `file` is used in messages.
std::string write_header(const SafetensorsHeader& header, const std::string& file);

// Throws Error unless the JSON is a complete header whose entries cover `data_bytes` exactly,
// without gaps or overlaps. Also throws for duplicate names and fields. Takes time proportional to
// the header's length.
SafetensorsHeader parse_header(std::string_view json, int64_t data_bytes, const std::string& file);

}  // namespace troika::checkpoint
