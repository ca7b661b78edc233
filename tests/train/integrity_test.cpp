// A damaged checkpoint is refused by name, and one that cannot be written costs no other.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/support/errors.h"
#include "tests/train/saved_state.h"
#include "troika/base/checksum.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/train/checkpoint/reader.h"
#include "troika/train/checkpoint/resume.h"
#include "troika/train/options.h"

namespace troika::train {
namespace {

using std::filesystem::perms;
using testing::AllOf;
using testing::HasSubstr;

constexpr int kRanks = 2;

// In place, and without waiting for the disk.
void overwrite(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

// Has the index of the checkpoint say something else, with the checksum of what it then says.
void change_index(const std::filesystem::path& checkpoint,
                  const std::function<void(nlohmann::ordered_json&)>& change) {
  const auto file = checkpoint / kIndexFile;
  auto json = nlohmann::ordered_json::parse(read_file(file));
  json.erase("crc32c");
  change(json);
  json["crc32c"] = crc32c(json.dump());
  overwrite(file, json.dump(1) + "\n");
}

// The bytes that this process has read from files so far.
int64_t bytes_read() {
  const std::string text = read_file("/proc/self/io");
  return std::stoll(text.substr(text.find(' ')));
}

// The message of the Error that `body` throws, or nothing.
std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// A file of more bytes cannot be written while this lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

// A folder in which this process may make nothing, also where it has root's rights.
class ReadOnly {
 public:
  explicit ReadOnly(std::filesystem::path folder) : folder_(std::move(folder)) {
    std::filesystem::permissions(folder_, static_cast<perms>(0555));
    constexpr uid_t kNobody = 65534;
    if (is_root_) {
      EXPECT_EQ(::seteuid(kNobody), 0);
    }
  }
  ~ReadOnly() {
    if (is_root_) {
      EXPECT_EQ(::seteuid(0), 0);
    }
    std::filesystem::permissions(folder_, perms::owner_all);
  }

 private:
  std::filesystem::path folder_;
  const bool is_root_ = ::geteuid() == 0;
};

class Integrity : public testing::Test {
 protected:
  // Rank r's `own` differs from the others'.
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
    return error_of([&] {
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

TEST_F(Integrity, AnyFlippedBitIsFound) {
  const auto checkpoint = save(1);
  std::mt19937_64 random(7);
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
    const std::string good = read_file(entry.path());
    for (int i = 0; i < 200; ++i) {
      const size_t bit = i == 0 ? 0 : i == 1 ? 8 * good.size() - 1 : random() % (8 * good.size());
      std::string bad = good;
      bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
      overwrite(entry.path(), bad);
      EXPECT_THAT(error_of_loading(checkpoint),
                  AllOf(HasSubstr(checkpoint.string()),
                        testing::AnyOf(HasSubstr(entry.path().filename()), HasSubstr("format"))))
          << "bit " << bit << " of " << entry.path();
    }
    overwrite(entry.path(), good);
  }
  EXPECT_EQ(error_of_loading(checkpoint), "");
}

TEST_F(Integrity, AShorterLongerOrMissingFileIsFound) {
  const auto checkpoint = save(1);
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
    const auto& file = entry.path();
    const std::string good = read_file(file);
    for (const size_t length : {size_t{0}, size_t{7}, good.size() / 2, good.size() - 1}) {
      overwrite(file, good.substr(0, length));
      EXPECT_THAT(error_of_loading(checkpoint),
                  AllOf(HasSubstr(checkpoint.string() + " is damaged"), HasSubstr(file.filename())))
          << length;
    }
    overwrite(file, good + " ");
    EXPECT_THAT(error_of_loading(checkpoint), HasSubstr(file.filename()));
    std::filesystem::remove(file);
    EXPECT_THAT(error_of_loading(checkpoint),
                AllOf(HasSubstr(checkpoint.string()), HasSubstr(file.filename())));
    overwrite(file, good);
  }
}

TEST_F(Integrity, TheMessageSaysWhatToDo) {
  const auto checkpoint = save(1);
  std::filesystem::resize_file(checkpoint / "rank-1.safetensors", 100);
  const auto bytes = read_index(checkpoint).files.at("rank-1.safetensors").bytes;
  EXPECT_ERROR(load_rank_state(checkpoint, 1), ErrorKind::usage,
               fmt::format("[train] checkpoint {} is damaged; got rank-1.safetensors of 100 bytes, "
                           "expected {} (trainer.ckpt_path may name the folder of another "
                           "checkpoint)",
                           checkpoint.string(), bytes));
  EXPECT_NO_THROW(CheckpointReader(checkpoint, 0).read("own")) << "it reads what it needs";
}

class Slices : public Integrity {
 protected:
  // Of a tensor [2, 4], rank r gives `count[r]` elements from `offset[r]` on.
  std::filesystem::path save_parts(const std::vector<int64_t>& offsets,
                                   const std::vector<int64_t>& counts) {
    comm::local::run(kRanks, [&](const comm::Group& group) {
      const auto rank = static_cast<size_t>(group.rank());
      const int64_t offset = offsets[rank], count = counts[rank];
      const RankState state{.model = {},
                            .rest = {{"t", at::arange(offset, offset + count)}},
                            .shards = {{"t", {2, 4}, offset, count}}};
      save_checkpoint(group, folder_.path(), state, {}, {});
    });
    return find_checkpoint(folder_.path(), "last");
  }

  // Of reading, when the index says something else of the tensor [2, 4] in two halves.
  std::string error_with(const std::function<void(nlohmann::ordered_json&)>& change) {
    const auto checkpoint = save_parts({0, 4}, {4, 4});
    change_index(checkpoint, [&](auto& index) { change(index["tensors"]["t"]); });
    return error_of([&] { CheckpointReader(checkpoint, 0).read("t"); });
  }
};

TEST_F(Slices, AreReadInPart) {
  const CheckpointReader saved(save_parts({0, 5}, {5, 3}), 1);
  EXPECT_EQ(saved.shape("t"), (std::vector<int64_t>{2, 4}));
  EXPECT_TRUE(saved.read("t").equal(at::arange(8).view({2, 4})));
  EXPECT_TRUE(saved.read("t", 3, 4).equal(at::arange(3, 7)));
  EXPECT_TRUE(saved.read("t", 6, 2).equal(at::arange(6, 8)));
  EXPECT_EQ(saved.read("t", 8, 0).numel(), 0);
  EXPECT_ERROR(saved.read("u"), ErrorKind::usage,
               "[train] checkpoint " + saved.path().string() +
                   " does not hold what is asked for; got no `u`");
  EXPECT_THAT(error_of([&] { saved.read("t", 6, 3); }),
              HasSubstr("got `t` of I64 [2, 4], expected a known type, and at least 9 elements"));
}

TEST_F(Slices, OnlyFilesThatHoldThemAreOpened) {
  const auto checkpoint = save_parts({0, 5}, {5, 3});
  std::filesystem::remove(checkpoint / "rank-1.safetensors");
  const CheckpointReader saved(checkpoint, 1);
  EXPECT_TRUE(saved.read("t", 1, 4).equal(at::arange(1, 5)));
  EXPECT_THAT(error_of([&] { saved.read("t", 1, 5); }), HasSubstr("got no rank-1.safetensors"));
}

TEST_F(Slices, OfRanksThatDoNotFitAreNotPublished) {
  const auto error_of_saving = [&](const std::vector<int64_t>& offsets,
                                   const std::vector<int64_t>& counts) {
    return error_of([&] { save_parts(offsets, counts); });
  };
  EXPECT_EQ(error_of_saving({0, 4}, {4, 3}),
            "[train] the ranks' shares of a checkpoint do not fit together; got elements 7 to 7 of "
            "`t`, after those of rank-1.safetensors, in no file, expected each element once");
  EXPECT_THAT(error_of_saving({1, 4}, {3, 4}),
              HasSubstr("elements 0 to 0 of `t`, before those of rank-0.safetensors, in no file"));
  EXPECT_THAT(error_of_saving({0, 2}, {4, 6}),
              HasSubstr("elements 2 to 3 of `t` in rank-0.safetensors and in rank-1.safetensors"));
  EXPECT_THAT(error_of_saving({0, 4}, {4, 5}), HasSubstr("`t` of 9 elements"));
  EXPECT_EQ(find_checkpoint(folder_.path(), "last"), "");
}

TEST_F(Slices, OfAnIndexThatDoesNotFitAreNamed) {
  EXPECT_THAT(error_with([](auto& tensor) { tensor["slices"].erase(1); }),
              AllOf(HasSubstr("is damaged"),
                    HasSubstr("got index.json with elements 4 to 7 of `t`, after those of "
                              "rank-0.safetensors, in no file")));
  EXPECT_THAT(error_with([](auto& tensor) {
                tensor["slices"][0]["count"] = 5;
                tensor["slices"][1]["offset"] = 5;
                tensor["slices"][1]["count"] = 3;
              }),
              AllOf(HasSubstr("is damaged"), HasSubstr("got `t` of I64 [4] in rank-0.safetensors, "
                                                       "expected 5 elements of I64")));
  EXPECT_THAT(error_with([](auto& tensor) { tensor["slices"][0]["name"] = "u"; }),
              HasSubstr("got no `u` in rank-0.safetensors"));
  EXPECT_THAT(error_with([](auto& tensor) { tensor["dtype"] = "F64"; }),
              HasSubstr("got `t` of I64 [4] in rank-0.safetensors, expected 4 elements of F64"));
}

TEST_F(Slices, OfNumbersThatNoTensorHasAreNamed) {
  EXPECT_THAT(error_with([](auto& tensor) { tensor["slices"][0]["offset"] = -4; }),
              HasSubstr("index.json with 4 elements of `t` from -4 on in rank-0.safetensors"));
  EXPECT_THAT(error_with([](auto& tensor) { tensor["slices"][1]["count"] = INT64_MAX; }),
              HasSubstr("elements of `t` from 4 on in rank-1.safetensors"));
  EXPECT_THAT(error_with([](auto& tensor) {
                tensor["shape"] = {-2, -4};
              }),
              HasSubstr("`t` of shape [-2, -4]"));
  EXPECT_THAT(error_with([](auto& tensor) {
                tensor["shape"] = {int64_t{1} << 60, 8};
              }),
              HasSubstr("`t` of shape [1152921504606846976, 8]"));
  EXPECT_THAT(error_with([](auto& tensor) { tensor["slices"][1]["crc32c"].push_back(0); }),
              HasSubstr("`t` in rank-1.safetensors with 2 checksums, expected 1"));
}

// The file has three chunks of float32, the last of 400 bytes.
TEST_F(Integrity, AChunkIsReadWithoutTheOthers) {
  constexpr int64_t kChunk = kChunkBytes / 4, kElements = 2 * kChunk + 100;
  comm::local::run(1, [&](const comm::Group& group) {
    save_checkpoint(group, folder_.path(),
                    {.model = {{"w", at::arange(kElements, at::kFloat)}}, .rest = {}}, {}, {});
  });
  const auto checkpoint = find_checkpoint(folder_.path(), "last");
  EXPECT_EQ(read_index(checkpoint).tensors.at("model.w").slices[0].crc32c.size(), 3U);
  const auto weights = checkpoint / kWeightsFile;
  std::string bytes = read_file(weights);
  bytes[bytes.size() - 400 - 7] ^= 1;  // in the second
  overwrite(weights, bytes);

  const CheckpointReader saved(checkpoint, 0);
  EXPECT_EQ(saved.read("model.w", 0, 1).item<float>(), 0);  // the file is open now
  const auto expect = [&](int64_t offset, int64_t count, int64_t most) {
    const int64_t before = bytes_read();
    EXPECT_TRUE(
        saved.read("model.w", offset, count).equal(at::arange(offset, offset + count, at::kFloat)));
    EXPECT_LE(bytes_read() - before, most) << offset;
  };
  constexpr int64_t kProc = 4096;  // of bytes_read() itself
  expect(kChunk - 3, 3, kChunkBytes + kProc);
  expect(5, 100, kChunkBytes + kProc);
  expect(2 * kChunk, 100, 400 + kProc);
  expect(2 * kChunk + 99, 1, 400 + kProc);
  expect(7, 0, kProc);
  for (const auto& [offset, count] : {std::pair(kChunk, int64_t{1}),
                                      {kChunk - 1, 2},
                                      {2 * kChunk - 1, 2},
                                      {int64_t{0}, kElements}}) {
    EXPECT_THAT(error_of([&] { saved.read("model.w", offset, count); }),
                HasSubstr("`model.w` in model.safetensors with checksum"))
        << offset;
  }
}

// Checkpoints of format 3 have one checksum for a whole slice.
TEST_F(Integrity, FormatThreeIsRead) {
  const auto checkpoint = save(1);
  change_index(checkpoint, [](auto& index) {
    index["format"] = 3;
    index.erase("chunk_bytes");
    for (auto& [name, tensor] : index["tensors"].items()) {
      for (auto& slice : tensor["slices"]) {
        const uint32_t whole = slice["crc32c"][0];
        slice["crc32c"] = whole;
      }
    }
  });
  EXPECT_EQ(error_of_loading(checkpoint), "");
  EXPECT_TRUE(load_weights(checkpoint)[0].second.equal(at::arange(40)));
  std::string bytes = read_file(checkpoint / kWeightsFile);
  bytes.back() ^= 1;
  overwrite(checkpoint / kWeightsFile, bytes);
  EXPECT_THAT(error_of_loading(checkpoint),
              HasSubstr("`model.w` in model.safetensors with checksum"));
}

TEST_F(Integrity, FilesOutsideTheFolderAreNotRead) {
  const TemporaryFolder elsewhere;
  const auto checkpoint = save(1);
  const auto outside = elsewhere / "model.safetensors";
  std::filesystem::copy_file(checkpoint / kWeightsFile, outside);
  const std::string index = read_file(checkpoint / kIndexFile);
  std::filesystem::create_directory(checkpoint / "deeper");
  for (const std::string& name :
       {outside.string(), std::string("../x/model.safetensors"), std::string(".."),
        std::string("."), std::string("deeper/model.safetensors"), std::string()}) {
    overwrite(checkpoint / kIndexFile, index);
    change_index(checkpoint, [&](auto& changed) {
      changed["files"][name] = changed["files"][kWeightsFile];
      for (auto& slice : changed["tensors"]["model.w"]["slices"]) slice["file"] = name;
    });
    EXPECT_THAT(error_of_loading(checkpoint),
                HasSubstr("is damaged; got index.json that names `" + name +
                          "`, expected names of files in its folder"));
  }
  // A name that is not among the files.
  overwrite(checkpoint / kIndexFile, index);
  change_index(checkpoint,
               [](auto& changed) { changed["tensors"]["model.w"]["slices"][0]["file"] = "other"; });
  EXPECT_THAT(error_of_loading(checkpoint), HasSubstr("index.json that names `other`"));
}

TEST_F(Integrity, LinksOutOfTheFolderAreNotFollowed) {
  const TemporaryFolder elsewhere;
  const auto checkpoint = save(1);
  const auto weights = checkpoint / kWeightsFile;
  const auto inside = checkpoint / "renamed.safetensors";
  std::filesystem::rename(weights, inside);
  std::filesystem::create_symlink("renamed.safetensors", weights);
  EXPECT_EQ(error_of_loading(checkpoint), "");
  std::filesystem::rename(inside, elsewhere / "model.safetensors");
  std::filesystem::remove(weights);
  std::filesystem::create_symlink(elsewhere / "model.safetensors", weights);
  EXPECT_THAT(error_of_loading(checkpoint),
              HasSubstr("is damaged; got model.safetensors, which leads to " +
                        (elsewhere / "model.safetensors").string()));
}

TEST_F(Integrity, WeightsAloneAreCheckedToo) {
  const auto checkpoint = save(1);
  const auto weights = checkpoint / "model.safetensors";
  torch::nn::Module module;
  module.register_buffer("w", at::zeros({40}, at::kLong));
  load_checkpoint(folder_ / "last.safetensors", module);
  EXPECT_TRUE(module.buffers()[0].equal(at::arange(40)));
  std::string bytes = read_file(weights);
  bytes.back() ^= 1;
  overwrite(weights, bytes);
  EXPECT_THAT(
      error_of([&] { load_checkpoint(folder_ / "last.safetensors", module); }),
      AllOf(HasSubstr("is damaged"), HasSubstr("`model.w` in model.safetensors with checksum")));
}

TEST_F(Integrity, LastThatACopyMadeAFolderIsFound) {
  const auto checkpoint = save(1);
  std::filesystem::remove(folder_ / "last");
  std::filesystem::rename(checkpoint, folder_ / "last");
  EXPECT_EQ(find_checkpoint(folder_.path(), "last"), folder_ / "last");
}

TEST_F(Integrity, LastWhoseFolderIsGoneIsAnError) {
  const auto checkpoint = save(1);
  std::filesystem::remove_all(checkpoint);
  const auto last = find_checkpoint(folder_.path(), "last");
  EXPECT_THAT(error_of([&] { checkpoint_ranks(last); }), HasSubstr(checkpoint.string()));
}

TEST_F(Integrity, AFullDiskLeavesTheFormerCheckpoint) {
  save(1);
  {
    const FileSizeLimit limit(4096);
    EXPECT_THAT(error_of([&] { save(2, 10000); }),
                AllOf(HasSubstr("cannot write"), HasSubstr("model.safetensors"),
                      HasSubstr("File too large")));
  }
  expect_step_1_stands();
  save(2);
  settle_unfinished(folder_.path());
  EXPECT_EQ(find_checkpoint(folder_.path(), "last"), folder_ / "epoch=0-step=2");
}

// A kill after the folder got its name, or before.
TEST_F(Integrity, WhatWasPublishedBeforeAKillBecomesTheLast) {
  save(1);
  save(2);
  const auto step_2 = folder_ / "epoch=0-step=2";
  move_link(folder_ / "last", "epoch=0-step=1");
  move_link(folder_ / ".publishing", "epoch=0-step=2");
  settle_unfinished(folder_.path());
  EXPECT_EQ(find_checkpoint(folder_.path(), "last"), step_2);
  EXPECT_FALSE(std::filesystem::is_symlink(folder_ / ".publishing"));
  move_link(folder_ / ".publishing", "epoch=0-step=3");
  settle_unfinished(folder_.path());
  EXPECT_EQ(find_checkpoint(folder_.path(), "last"), step_2);
  EXPECT_FALSE(std::filesystem::is_symlink(folder_ / ".publishing"));
}

TEST_F(Integrity, AReadOnlyFolderLeavesTheFormerCheckpoint) {
  save(1);
  {
    const ReadOnly read_only(folder_.path());
    EXPECT_THAT(error_of([&] { save(2); }),
                AllOf(HasSubstr("cannot create folder"), HasSubstr("Permission denied")));
  }
  expect_step_1_stands();
}

}  // namespace
}  // namespace troika::train
