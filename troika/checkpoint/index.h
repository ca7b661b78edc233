// index.json of a checkpoint: who wrote it, what its files are, and where in them the tensors lie.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "troika/base/error.h"
#include "troika/checkpoint/checkpoint.h"
#include "troika/layout/box.h"

namespace troika::checkpoint {

// Where the elements of a box are: one after another in its row-major order.
struct SavedBox {
  std::string file;              // in the checkpoint's folder
  std::string key;               // of the tensor in the file
  layout::Box box;               // with the name of its SavedTensor
  std::vector<uint32_t> crc32c;  // of every CheckpointIndex::chunk_bytes of its bytes
};

struct SavedTensor {
  std::string dtype;  // as safetensors name it
  std::vector<int64_t> shape;
  std::vector<SavedBox> boxes;  // each element in one of them
};

struct SavedFile {
  int64_t bytes = 0;
  uint32_t header = 0;  // CRC-32C
};

// The format that is written, and the oldest of those that a run goes on from.
inline constexpr int64_t kCheckpointFormat = 5;
inline constexpr int64_t kOldestToResume = 4;

struct CheckpointIndex {
  int64_t format = kCheckpointFormat;
  int ranks = 1;
  CheckpointInfo info;
  int64_t chunk_bytes = kChunkBytes;
  std::map<std::string, SavedFile> files;      // by name in the checkpoint's folder
  std::map<std::string, SavedTensor> tensors;  // by name among all of the checkpoint's
};

constexpr const char* kIndexFile = "index.json";
constexpr const char* kWeightsFile = "model.safetensors";
std::string rank_file(int rank);

// Tensors are `model.` and the module's own name for it, or what the run gave them; of those in
// which rank N differs from rank 0, its own are named so.
constexpr const char* kModelPrefix = "model.";
std::string own_name(int rank, const std::string& name);
bool is_own_name(const std::string& name);

// The files and tensors that one rank has written, for rank 0, which adds them to the index.
std::string to_text(const CheckpointIndex& share);
void add_share(CheckpointIndex& index, const std::string& text);

// The file carries a checksum of itself. Throws Error(failure) naming the tensor and the file where
// elements lie in no box, or in two.
void write_index(const std::filesystem::path& checkpoint, CheckpointIndex index);

// Reads formats 5; 4, which had flat ranges of whole tensors and no plan; and 3, which had one
// checksum for a range. Throws Error(usage) naming the file, and the tensor, where the index is
// damaged, of another format, names a file outside the checkpoint's folder, or has elements in no
// box or in two.
CheckpointIndex read_index(const std::filesystem::path& checkpoint);

Error damaged_checkpoint(const std::filesystem::path& checkpoint, std::string got,
                         std::string expected);

}  // namespace troika::checkpoint
