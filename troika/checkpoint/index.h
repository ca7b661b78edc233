// The index.json of a checkpoint: its ranks, its files, and the positions of its tensors in the
// files.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "troika/base/error.h"
#include "troika/checkpoint/checkpoint.h"
#include "troika/layout/box.h"

namespace troika::checkpoint {

// The position of a box: its elements are stored one after another in the box's row-major order.
struct SavedBox {
  std::string file;              // in the checkpoint's folder
  std::string key;               // the tensor's name in the file
  layout::Box box;               // with the name of its SavedTensor
  std::vector<uint32_t> crc32c;  // of each CheckpointIndex::chunk_bytes of the box's bytes
};

struct SavedTensor {
  std::string dtype;  // safetensors' name of the type
  std::vector<int64_t> shape;
  std::vector<SavedBox> boxes;  // together cover each element exactly once
};

struct SavedFile {
  int64_t bytes = 0;
  uint32_t header = 0;  // CRC-32C of the header
};

// The format that is written, and the oldest format from which a run can resume.
inline constexpr int64_t kCheckpointFormat = 5;
inline constexpr int64_t kOldestToResume = 4;

struct CheckpointIndex {
  int64_t format = kCheckpointFormat;
  int ranks = 1;
  CheckpointInfo info;
  int64_t chunk_bytes = kChunkBytes;
  std::map<std::string, SavedFile> files;      // by name in the checkpoint's folder
  std::map<std::string, SavedTensor> tensors;  // by name in the checkpoint
};

constexpr const char* kIndexFile = "index.json";
constexpr const char* kWeightsFile = "model.safetensors";
std::string rank_file(int rank);

// A tensor of the model is named `model.` plus its name in the module; the run names all others. If
// rank N's tensor differs from rank 0's tensor of the same name, it is stored under own_name(N,
// name).
constexpr const char* kModelPrefix = "model.";
std::string own_name(int rank, const std::string& name);
bool is_own_name(const std::string& name);

// Serializes the files and tensors of one rank for rank 0, and adds them to rank 0's index.
std::string to_text(const CheckpointIndex& shard);
void add_shard(CheckpointIndex& index, const std::string& text);

// Writes the index with a checksum of itself. Throws Error(failure), naming the tensor and the
// file, if an element is in no box or in two.
void write_index(const std::filesystem::path& checkpoint, CheckpointIndex index);

// Reads formats 5, 4 (flat ranges of whole tensors, no plan) and 3 (one checksum per range). Throws
// Error(usage), naming the file and the tensor, if the index is damaged, has another format, names
// a file outside the checkpoint's folder, or has an element in no box or in two.
CheckpointIndex read_index(const std::filesystem::path& checkpoint);

Error damaged_checkpoint(const std::filesystem::path& checkpoint, std::string got,
                         std::string expected);

}  // namespace troika::checkpoint
