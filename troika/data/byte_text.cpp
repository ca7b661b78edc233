#include "troika/data/byte_text.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/random.h"
#include "troika/data/fail.h"

namespace troika::data {

ByteText::ByteText(const std::vector<std::filesystem::path>& files, Split split,
                   const ByteTextOptions& options)
    : context_(options.context), shift_(split == Split::train && options.shift_each_epoch) {
  if (files.empty()) fail("text needs at least one file", "none", "");
  if (context_ < 1) fail("context", std::to_string(context_), ">= 1");
  if (!(options.validation_fraction >= 0 && options.validation_fraction < 1)) {
    fail("validation fraction", fmt::format("{}", options.validation_fraction),
         "a number from 0 to below 1");
  }
  int64_t all = 0;
  for (const auto& file : files) {
    files_.emplace_back(file);
    all += static_cast<int64_t>(files_.back().content().size());
    ends_.push_back(all);
  }
  const auto held_out =
      static_cast<int64_t>(static_cast<double>(all) * options.validation_fraction);
  if (split == Split::validation) first_ = all - held_out;
  const int64_t bytes = split == Split::train ? all - held_out : held_out;
  // A training window may be shifted by up to context - 1 bytes and needs one byte more to predict.
  windows_ = split == Split::train ? bytes / context_ - 1 : (bytes - 1) / context_;
  if (windows_ < 1) {
    fail(fmt::format("the {} part of the text in {}{} is too short for context {}",
                     split == Split::train ? "training" : "validation", files.front().string(),
                     files.size() > 1 ? fmt::format(" and {} more", files.size() - 1) : "",
                     context_),
         fmt::format("{} bytes", bytes),
         fmt::format(">= {}", split == Split::train ? 2 * context_ : context_ + 1),
         fmt::format("the validation fraction is {}", options.validation_fraction));
  }
  if (options.limit > 0) windows_ = std::min(windows_, options.limit);
}

Batch ByteText::load(std::span<const int64_t> indices,
                     std::optional<uint64_t> augmentation_seed) const {
  const auto count = static_cast<int64_t>(indices.size());
  Batch batch{at::empty({count, context_}, at::kLong), at::empty({count, context_}, at::kLong)};
  auto* input = batch.inputs.data_ptr<int64_t>();
  auto* target = batch.targets.data_ptr<int64_t>();
  uint64_t shift = 0;
  if (shift_ && augmentation_seed) {
    shift = Random(mix(*augmentation_seed)).below(static_cast<uint64_t>(context_));
  }
  std::vector<uint8_t> window(static_cast<size_t>(context_) + 1);
  for (const int64_t index : indices) {
    TROIKA_CHECK(index >= 0 && index < size(), fmt::format("window {} of {}", index, size()));
    copy(first_ + static_cast<int64_t>(shift) + index * context_, context_ + 1, window.data());
    input = std::copy_n(window.data(), context_, input);
    target = std::copy_n(window.data() + 1, context_, target);
  }
  return batch;
}

void ByteText::copy(int64_t offset, int64_t count, uint8_t* into) const {
  auto file = static_cast<size_t>(std::ranges::upper_bound(ends_, offset) - ends_.begin());
  for (; count > 0; ++file) {
    const auto content = files_[file].content();
    const auto size = static_cast<int64_t>(content.size());
    const int64_t begin = offset - (ends_[file] - size);
    const int64_t here = std::min(count, size - begin);
    into = std::copy_n(content.data() + begin, here, into);
    offset += here;
    count -= here;
  }
}

}  // namespace troika::data
