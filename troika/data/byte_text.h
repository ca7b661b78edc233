// Text for language models: every byte is a token, so any file works without a vocabulary.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "troika/base/file_view.h"
#include "troika/data/dataset.h"

namespace troika::data {

struct ByteTextOptions {
  int64_t context = 128;             // bytes that a sample predicts; >= 1
  double validation_fraction = 0.1;  // taken from the end of the text; 0 <= fraction < 1
  int64_t limit = 0;                 // maximum number of windows, the first ones; 0: all
  bool shift_each_epoch = true;      // training split only, see below
};

// Sample i predicts bytes i * context + 1 .. (i + 1) * context of its split from the bytes before
// them. Windows are adjacent, and an epoch is one pass over the text. With shift_each_epoch all
// windows start later by a number of bytes below `context`, drawn from the augmentation seed, so
// that window boundaries differ between epochs. So an epoch leaves out up to two windows of the
// training text; validation leaves out only the bytes that do not fill a window.
class ByteText final : public Dataset {
 public:
  // Concatenates the files. They are mapped, not read into memory, and must not become shorter
  // meanwhile. Throws Error(usage) for a file that cannot be mapped, an option out of range and a
  // text too short for one window.
  ByteText(const std::vector<std::filesystem::path>& files, Split split,
           const ByteTextOptions& options);

  int64_t size() const override { return windows_; }
  Batch load(std::span<const int64_t> indices,
             std::optional<uint64_t> augmentation_seed) const override;
  int64_t num_classes() const override { return 256; }
  std::vector<int64_t> input_shape() const override { return {context_}; }
  std::vector<int64_t> target_shape() const override { return {context_}; }

 private:
  // Copies `count` bytes of the concatenated text from `offset` on.
  void copy(int64_t offset, int64_t count, uint8_t* into) const;

  std::vector<FileView> files_;
  std::vector<int64_t> ends_;  // of each file in the concatenated text
  int64_t first_ = 0;          // first byte of this split in the concatenated text
  int64_t context_;
  bool shift_;
  int64_t windows_ = 0;
};

}  // namespace troika::data
