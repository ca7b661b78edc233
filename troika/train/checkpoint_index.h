// index.json of a checkpoint: who wrote it, what its files are, and where the tensors lie in them.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "troika/train/checkpoint.h"
#include "troika/train/crc32c.h"
#include "troika/train/safetensors.h"

namespace troika::train {

using FileDigests = std::map<std::string, FileDigest>;  // by name in the checkpoint's folder

struct CheckpointIndex {
  int ranks = 1;
  CheckpointInfo info;
  FileDigests files;
};

constexpr const char* kIndexFile = "index.json";
constexpr const char* kWeightsFile = "model.safetensors";
std::string rank_file(int rank);

// `model` and `rest` are rank 0's: what its two files hold. The file carries a checksum of itself.
void write_index(const std::filesystem::path& checkpoint, const CheckpointIndex& index,
                 const NamedTensors& model, const NamedTensors& rest);

// Throws Error(usage) naming the file where it is damaged, or of another version of the format.
CheckpointIndex read_index(const std::filesystem::path& checkpoint);

// Throws Error(usage) naming the file where it is not, byte for byte, the one that was written.
void check_file(const std::filesystem::path& checkpoint, const CheckpointIndex& index,
                const std::string& name);

// The same for a file that lies beside an index; others pass.
void check_if_indexed(const std::filesystem::path& file);

std::string to_text(const FileDigests& files);
FileDigests digests_from_text(const std::string& text);

}  // namespace troika::train
