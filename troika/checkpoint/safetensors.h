// Named tensors in a safetensors file (huggingface.co/docs/safetensors): an 8-byte little-endian
// header length, a JSON header `{name: {dtype, shape, data_offsets}}` with `__metadata__` for
// strings, then the tensors' bytes. Python's `safetensors` package can read it.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "troika/base/file.h"
#include "troika/layout/runs.h"
#include "troika/state/state_dict.h"

namespace troika::checkpoint {

// Files hold whole tensors: functions below ignore boxes.
using NamedTensors = state::StateDict;
using Metadata = std::map<std::string, std::string>;
struct SafetensorsHeader;
struct TensorEntry;

// The number of bytes of a tensor that share a checksum. The last chunk of a tensor may be shorter.
inline constexpr int64_t kChunkBytes = 4 << 20;

// The size and checksums by which a damaged file is recognized.
struct FileDigest {
  int64_t bytes = 0;
  uint32_t header = 0;                         // CRC-32C of all bytes before the tensors
  std::vector<std::vector<uint32_t>> tensors;  // CRC-32C of each tensor's chunks
};

// Returns the CRC-32C of each chunk of the tensor's bytes, as they are stored in a file. The tensor
// may be on any device and need not be contiguous.
std::vector<uint32_t> chunk_checksums(const at::Tensor& tensor);

// The way in which a file appears under its name.
enum class Publish {
  at_once,      // as in write_file_atomically()
  with_folder,  // as in write_new_file()
};

// Writes the file whole or not at all, and returns its digest. The header keeps the given order;
// the data is ordered by descending element size, so every tensor is aligned. Tensors may be on any
// device and need not be contiguous; they are copied to the host one at a time. Throws Error for a
// duplicate or non-UTF-8 name, and for a tensor that the format cannot hold (unsupported dtype,
// sparse, undefined).
FileDigest save_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                            const Metadata& metadata = {}, Publish publish = Publish::at_once);

// A file that is open for reading. Its whole header is read and validated before any tensor is
// made. Errors name the file and the tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();

  const SafetensorsHeader& header() const { return *header_; }
  int64_t bytes() const { return file_.size(); }
  uint32_t header_crc32c() const { return header_crc32c_; }
  // Returns null if there is no tensor of this name.
  const TensorEntry* find(std::string_view name) const;

  // Reads the elements [offset, offset + count) of a tensor of the file, in row-major order.
  // Returns shape [count], on the host.
  at::Tensor read(const TensorEntry& tensor, int64_t offset, int64_t count) const;

  // Reads `runs`, which map elements of a tensor of the file to elements of `into`, a contiguous
  // tensor on the host. Reads exactly the chunks of `chunk_bytes` that contain some of these
  // elements, each as a whole, and passes the CRC-32C of each to `check`.
  using CheckChunk = std::function<void(int64_t chunk, uint32_t crc32c)>;
  void read(const TensorEntry& tensor, layout::Runs runs, const at::Tensor& into,
            int64_t chunk_bytes, const CheckChunk& check) const;

 private:
  const File file_;
  std::unique_ptr<const SafetensorsHeader> header_;
  std::unordered_map<std::string_view, const TensorEntry*> by_name_;
  int64_t data_start_ = 0;
  uint32_t header_crc32c_ = 0;
};

// Checks an output path: throws Error(usage) if `path` exists and is not a safetensors file, so
// that no other file is overwritten.
void require_replaceable(const std::filesystem::path& path);

// Reads all tensors of the file, in the order of its header, to the host.
NamedTensors load_safetensors(const std::filesystem::path& path);

// Reads the strings of `__metadata__`. Reads and validates the whole header, but no tensors.
Metadata read_safetensors_metadata(const std::filesystem::path& path);

using Shapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;  // by name

// Throws Error(usage) unless both have the same names and shapes; lists missing and unexpected
// tensors and differing shapes. `origin` names the source of `given` in messages, for example a
// file.
void require_fit(const Shapes& model, const Shapes& given, std::string_view origin);

// Copies `source` into the tensors of `destination` with the same names, in place and on their
// devices, and converts dtypes. If require_fit() fails for them, throws before any tensor changes.
void load_into(const NamedTensors& destination, const NamedTensors& source,
               std::string_view origin);

}  // namespace troika::checkpoint
