// Named tensors in a safetensors file (huggingface.co/docs/safetensors): an 8-byte little-endian
// header length, a JSON header `{name: {dtype, shape, data_offsets}}` with `__metadata__` for
// strings, then the tensors' bytes. Python reads it with the `safetensors` package.
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

// Files have whole tensors: boxes do not count there.
using NamedTensors = state::StateDict;
using Metadata = std::map<std::string, std::string>;
struct SafetensorsHeader;
struct TensorEntry;

// The bytes of a tensor that share a checksum. The last chunk of a tensor may be shorter.
inline constexpr int64_t kChunkBytes = 4 << 20;

// Checksums and size by which a damaged file is recognised.
struct FileDigest {
  int64_t bytes = 0;
  uint32_t header = 0;                         // CRC-32C of all that comes before the tensors
  std::vector<std::vector<uint32_t>> tensors;  // CRC-32C of the chunks of each, in the order given
};

// The CRC-32C of each chunk of the tensor's bytes, as a file holds them. The tensor may live on any
// device and need not be contiguous.
std::vector<uint32_t> chunk_checksums(const at::Tensor& tensor);

// How a file appears under its name.
enum class Publish {
  at_once,      // as of write_file_atomically()
  with_folder,  // as of write_new_file()
};

// Writes the file whole or not at all. The header keeps the order given; the data is laid out by
// descending element size, so every tensor is aligned. Tensors may live on any device and need not
// be contiguous; one at a time is copied to the host. Throws Error for a duplicate or non-UTF-8
// name, and for a tensor the format cannot hold (a dtype it lacks, sparse, undefined). Returns what
// the file is.
FileDigest save_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                            const Metadata& metadata = {}, Publish publish = Publish::at_once);

// A file open for reading, whose header was read and validated, every byte of it, before any tensor
// is made; an Error names the file and the tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();

  const SafetensorsHeader& header() const { return *header_; }
  int64_t bytes() const { return file_.size(); }
  uint32_t header_crc32c() const { return header_crc32c_; }
  // Null where there is none of this name.
  const TensorEntry* find(std::string_view name) const;

  // The elements [offset, offset + count) of a tensor of the file, in the order of its dimensions:
  // [count], on the host.
  at::Tensor read(const TensorEntry& tensor, int64_t offset, int64_t count) const;

  // Reads `runs`, which lead from the elements of a tensor of the file to those of `into`, a
  // contiguous tensor on the host. Tells the CRC-32C of every chunk of `chunk_bytes` of the
  // tensor's bytes that holds some of these elements. Those chunks are read in whole, and no other.
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

// For output: throws Error(usage) where `path` is there and is no safetensors file, which would be
// lost.
void require_replaceable(const std::filesystem::path& path);

// All tensors of the file, in the order of its header, on the host.
NamedTensors load_safetensors(const std::filesystem::path& path);

// The strings of `__metadata__` alone. The header is read and validated as a whole, no tensor is.
Metadata read_safetensors_metadata(const std::filesystem::path& path);

using Shapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;  // by name

// Throws Error(usage), naming what is missing, unexpected or of another shape, unless both have the
// same names and shapes. `origin` says in messages where `given` comes from, e.g. a file.
void require_fit(const Shapes& model, const Shapes& given, std::string_view origin);

// Copies `source` into the tensors of `destination` with the same name, in place and on their
// device; dtypes are converted. They must fit as of require_fit(), else no tensor has changed.
void load_into(const NamedTensors& destination, const NamedTensors& source,
               std::string_view origin);

}  // namespace troika::checkpoint
