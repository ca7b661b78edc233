// Checkpoints for tests that damage them.
#pragma once

#include <gmock/gmock.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/checkpoint/saved_state.h"
#include "troika/base/checksum.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/checkpoint/reader.h"
#include "troika/checkpoint/resume.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"

namespace troika::checkpoint {

// Writes in place, without a sync to the disk.
inline void overwrite(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

// Changes the index of the checkpoint, and its checksum to match.
inline void change_index(const std::filesystem::path& checkpoint,
                         const std::function<void(nlohmann::ordered_json&)>& change) {
  const auto file = checkpoint / kIndexFile;
  auto json = nlohmann::ordered_json::parse(read_file(file));
  json.erase("crc32c");
  change(json);
  json["crc32c"] = crc32c(json.dump());
  overwrite(file, json.dump(1) + "\n");
}

// Converts the checkpoint to format 4, which has no plan, and whose boxes are ranges of whole
// tensors. The boxes of the checkpoint must be such ranges.
inline void make_format_four(const std::filesystem::path& checkpoint) {
  change_index(checkpoint, [](auto& index) {
    index["format"] = 4;
    index.erase("plan");
    for (auto& [name, tensor] : index["tensors"].items()) {
      for (auto& box : tensor["boxes"]) {
        int64_t count = 1;
        for (const auto& size : tensor["shape"]) count *= size.template get<int64_t>();
        const bool is_flat = box.contains("flat");
        const int64_t begin = is_flat ? box["flat"][0].template get<int64_t>() : 0;
        const int64_t end = is_flat ? box["flat"][1].template get<int64_t>() : count;
        box["offset"] = begin;
        box["count"] = end - begin;
        box.erase("size");
        box.erase("flat");
      }
      tensor["slices"] = tensor["boxes"];
      tensor.erase("boxes");
    }
  });
}

// Converts the checkpoint to format 3, which differs from format 4 by having one checksum for a
// range. The tensors must have at most one chunk each.
inline void make_format_three(const std::filesystem::path& checkpoint) {
  make_format_four(checkpoint);
  change_index(checkpoint, [](auto& index) {
    index["format"] = 3;
    index.erase("chunk_bytes");
    for (auto& [name, tensor] : index["tensors"].items()) {
      for (auto& slice : tensor["slices"]) {
        const uint32_t whole =
            slice["count"] == 0 ? 0 : slice["crc32c"][0].template get<uint32_t>();
        slice["crc32c"] = whole;
      }
    }
  });
}

// Returns the message of the Error that `body` throws, or an empty string.
inline std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

class Integrity : public testing::Test {
 protected:
  static constexpr int kRanks = 2;

  // The tensor `own` of each rank differs from those of the others.
  std::filesystem::path save(int64_t step, int64_t elements = 40) {
    comm::local::run(kRanks, [&](const comm::Group& group) {
      const RankState state{
          .model = {{"w", at::arange(elements)}},
          .rest = {{"own", at::full({30}, double(group.rank()))}, {"same", at::ones({3})}}};
      save_checkpoint(group, folder_.path(), state, {}, {.epoch = 0, .step = step});
    });
    return find_checkpoint(folder_.path(), "last");
  }

  static std::string error_of_loading(const std::filesystem::path& checkpoint) {
    return message_of([&] {
      for (int rank = 0; rank < kRanks; ++rank) load_rank_state(checkpoint, rank);
    });
  }

  void expect_step_1_stands() {
    const auto last = find_checkpoint(folder_.path(), "last");
    EXPECT_EQ(last, folder_ / "epoch=0-step=1");
    EXPECT_EQ(error_of_loading(last), "");
  }

  const TemporaryFolder folder_;
};

}  // namespace troika::checkpoint
