// The error for a damaged checkpoint names the file, and a checkpoint that cannot be written leaves
// the others intact.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <random>

#include "tests/checkpoint/damaged_checkpoint.h"
#include "tests/support/errors.h"

namespace troika::checkpoint {
namespace {

using std::filesystem::perms;
using testing::AllOf;
using testing::HasSubstr;

// While this object lives, larger files cannot be written.
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

// A folder in which this process can create nothing, even as root.
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
  EXPECT_ERROR(
      load_rank_state(checkpoint, 1), ErrorKind::usage,
      fmt::format("[checkpoint] checkpoint {} is damaged; got rank-1.safetensors of 100 bytes, "
                  "expected {} (trainer.ckpt_path may name the folder of another "
                  "checkpoint)",
                  checkpoint.string(), bytes));
  EXPECT_NO_THROW(CheckpointReader(checkpoint, 0).read("own")) << "it reads what it needs";
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
      message_of([&] { load_checkpoint(folder_ / "last.safetensors", module); }),
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
  EXPECT_THAT(message_of([&] { checkpoint_ranks(last); }), HasSubstr(checkpoint.string()));
}

TEST_F(Integrity, AFullDiskLeavesTheFormerCheckpoint) {
  save(1);
  {
    const FileSizeLimit limit(4096);
    EXPECT_THAT(message_of([&] { save(2, 10000); }),
                AllOf(HasSubstr("cannot write"), HasSubstr("model.safetensors"),
                      HasSubstr("File too large")));
  }
  expect_step_1_stands();
  save(2);
  clean_up_unfinished(folder_.path());
  EXPECT_EQ(find_checkpoint(folder_.path(), "last"), folder_ / "epoch=0-step=2");
}

// A kill before or after the folder gets its final name.
TEST_F(Integrity, WhatWasPublishedBeforeAKillBecomesTheLast) {
  save(1);
  save(2);
  const auto step_2 = folder_ / "epoch=0-step=2";
  move_link(folder_ / "last", "epoch=0-step=1");
  move_link(folder_ / ".publishing", "epoch=0-step=2");
  clean_up_unfinished(folder_.path());
  EXPECT_EQ(find_checkpoint(folder_.path(), "last"), step_2);
  EXPECT_FALSE(std::filesystem::is_symlink(folder_ / ".publishing"));
  move_link(folder_ / ".publishing", "epoch=0-step=3");
  clean_up_unfinished(folder_.path());
  EXPECT_EQ(find_checkpoint(folder_.path(), "last"), step_2);
  EXPECT_FALSE(std::filesystem::is_symlink(folder_ / ".publishing"));
}

// A kill while a checkpoint replaces another on a file system that cannot exchange folders.
TEST_F(Integrity, AKillWhileACheckpointIsReplacedLeavesTheFormer) {
  const auto path = folder_ / "named";
  const auto write = [&](int64_t step) {
    write_checkpoint(comm::local::alone(), path, {}, {}, {.step = step});
  };
  write(1);
  std::filesystem::rename(path, folder_ / ".former-named");
  EXPECT_EQ(find_checkpoint(folder_.path(), path), folder_ / ".former-named");
  write(2);
  EXPECT_EQ(find_checkpoint(folder_.path(), path), path);
  EXPECT_FALSE(std::filesystem::exists(folder_ / ".former-named"));
  std::filesystem::remove_all(path);
  EXPECT_THROW(find_checkpoint(folder_.path(), path), Error);
}

TEST_F(Integrity, AReadOnlyFolderLeavesTheFormerCheckpoint) {
  save(1);
  {
    const ReadOnly read_only(folder_.path());
    EXPECT_THAT(message_of([&] { save(2); }),
                AllOf(HasSubstr("cannot create folder"), HasSubstr("Permission denied")));
  }
  expect_step_1_stands();
}

TEST_F(Integrity, ANumberOfRanksThatCannotBeIsADamagedIndex) {
  for (const int64_t ranks : {int64_t{0}, int64_t{-1}, int64_t{2'000'000'000}}) {
    const auto checkpoint = save(ranks < 0 ? 1 : ranks % 7 + 2);
    change_index(checkpoint, [&](auto& json) { json["ranks"] = ranks; });
    EXPECT_THAT(message_of([&] { CheckpointReader(checkpoint, 0); }),
                HasSubstr("got another index.json"))
        << ranks;
  }
}

}  // namespace
}  // namespace troika::checkpoint
