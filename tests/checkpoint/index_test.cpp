// The index of a checkpoint is compared with its files before they are read. Only the chunks that
// are needed are checked.
#include "troika/checkpoint/index.h"

#include <vector>

#include "tests/checkpoint/damaged_checkpoint.h"
#include "tests/checkpoint/read_bytes.h"
#include "tests/support/errors.h"

namespace troika::checkpoint {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Boxes : public Integrity {
 protected:
  static layout::Box flat(int64_t offset, int64_t count) {
    return layout::Box::range("t", {2, 4}, {offset, offset + count});
  }

  // Saves a tensor [2, 4], of which rank r writes `counts[r]` elements from `offsets[r]` on.
  std::filesystem::path save_parts(const std::vector<int64_t>& offsets,
                                   const std::vector<int64_t>& counts) {
    comm::local::run(kRanks, [&](const comm::Group& group) {
      const auto rank = static_cast<size_t>(group.rank());
      const int64_t offset = offsets[rank], count = counts[rank];
      const RankState state{
          .model = {}, .rest = {{"t", at::arange(offset, offset + count), flat(offset, count)}}};
      save_checkpoint(group, folder_.path(), state, {}, {});
    });
    return find_checkpoint(folder_.path(), "last");
  }

  // Returns the error of reading a tensor [2, 4] in two halves, after a change of the index.
  std::string error_with(const std::function<void(nlohmann::ordered_json&)>& change) {
    const auto checkpoint = save_parts({0, 4}, {4, 4});
    change_index(checkpoint, [&](auto& index) { change(index["tensors"]["t"]); });
    return message_of([&] { CheckpointReader(checkpoint, 0).read("t"); });
  }
};

TEST_F(Boxes, AreReadInPart) {
  const CheckpointReader saved(save_parts({0, 5}, {5, 3}), 1);
  EXPECT_EQ(saved.shape("t"), (std::vector<int64_t>{2, 4}));
  EXPECT_TRUE(saved.read("t").equal(at::arange(8).view({2, 4})));
  EXPECT_TRUE(saved.read(flat(3, 4)).equal(at::arange(3, 7)));
  EXPECT_TRUE(saved.read(flat(6, 2)).equal(at::arange(6, 8)));
  EXPECT_EQ(saved.read(flat(8, 0)).numel(), 0);
  EXPECT_ERROR(
      saved.read("u"), ErrorKind::usage,
      "[checkpoint] checkpoint " + saved.path().string() + " lacks requested data; got no `u`");
  EXPECT_THAT(message_of([&] { saved.read(flat(6, 3)); }),
              HasSubstr("flat range in a box of t; got 6:9, expected a range within 0:8"));
  EXPECT_THAT(message_of([&] {
                saved.read(layout::Box::whole("t", {4, 2}));
              }),
              HasSubstr("got `t` of shape [2, 4], expected [4, 2]"));
}

TEST_F(Boxes, OnlyFilesThatHoldThemAreOpened) {
  const auto checkpoint = save_parts({0, 5}, {5, 3});
  std::filesystem::remove(checkpoint / "rank-1.safetensors");
  const CheckpointReader saved(checkpoint, 1);
  EXPECT_TRUE(saved.read(flat(1, 4)).equal(at::arange(1, 5)));
  EXPECT_THAT(message_of([&] { saved.read(flat(1, 5)); }), HasSubstr("got no rank-1.safetensors"));
}

TEST_F(Boxes, OfRanksThatDoNotFitAreNotPublished) {
  const auto error_of_saving = [&](const std::vector<int64_t>& offsets,
                                   const std::vector<int64_t>& counts) {
    return message_of([&] { save_parts(offsets, counts); });
  };
  EXPECT_EQ(
      error_of_saving({0, 4}, {4, 3}),
      "[checkpoint] the ranks' shards of a checkpoint do not fit together; got 1 element of `t` in "
      "no file, expected each element once");
  EXPECT_THAT(error_of_saving({1, 4}, {3, 4}), HasSubstr("1 element of `t` in no file"));
  EXPECT_THAT(error_of_saving({0, 2}, {4, 6}),
              HasSubstr("elements both in `t(2,4)[0:2,0:4]{0:4}` in rank-0.safetensors and in "
                        "`t(2,4)[0:2,0:4]{2:8}` in rank-1.safetensors"));
  EXPECT_THAT(error_of_saving({0, 4}, {4, 5}),
              HasSubstr("a box of `t` from [0, 0] of size [2, 4] with elements from 4 to 9 in "
                        "rank-1.safetensors"));
  EXPECT_EQ(find_checkpoint(folder_.path(), "last"), "");
}

TEST_F(Boxes, OfAnIndexThatDoesNotFitAreNamed) {
  EXPECT_THAT(error_with([](auto& tensor) { tensor["boxes"].erase(1); }),
              AllOf(HasSubstr("is damaged"),
                    HasSubstr("got index.json with 4 elements of `t` in no file")));
  EXPECT_THAT(error_with([](auto& tensor) { tensor["boxes"].clear(); }),
              HasSubstr("got index.json with `t` in no file"));
  EXPECT_THAT(error_with([](auto& tensor) {
                tensor["boxes"][0]["flat"] = {0, 5};
                tensor["boxes"][1]["flat"] = {5, 8};
              }),
              AllOf(HasSubstr("is damaged"), HasSubstr("got `t` of I64 [4] in rank-0.safetensors, "
                                                       "expected 5 elements of I64")));
  EXPECT_THAT(error_with([](auto& tensor) { tensor["boxes"][0]["name"] = "u"; }),
              HasSubstr("got no `u` in rank-0.safetensors"));
  EXPECT_THAT(error_with([](auto& tensor) { tensor["dtype"] = "F64"; }),
              HasSubstr("got `t` of I64 [4] in rank-0.safetensors, expected 4 elements of F64"));
}

TEST_F(Boxes, OfNumbersThatNoTensorHasAreNamed) {
  EXPECT_THAT(error_with([](auto& tensor) {
                tensor["boxes"][0]["flat"] = {-4, 0};
              }),
              HasSubstr("with elements from -4 to 0 in rank-0.safetensors"));
  EXPECT_THAT(error_with([](auto& tensor) {
                tensor["boxes"][1]["flat"] = {4, INT64_MAX};
              }),
              HasSubstr("with elements from 4 to 9223372036854775807 in rank-1.safetensors"));
  EXPECT_THAT(error_with([](auto& tensor) {
                tensor["boxes"][1]["size"] = {2, INT64_MAX};
              }),
              HasSubstr("in rank-1.safetensors"));
  EXPECT_THAT(error_with([](auto& tensor) { tensor["boxes"][1]["size"] = std::vector<int64_t>(); }),
              HasSubstr("a box of `t` from [0, 0] of size [] with elements from 4 to 8 in "
                        "rank-1.safetensors"));
  EXPECT_THAT(error_with([](auto& tensor) { tensor["boxes"][1]["offset"] = {0}; }),
              HasSubstr("in rank-1.safetensors"));
  EXPECT_THAT(error_with([](auto& tensor) {
                tensor["shape"] = {-2, -4};
              }),
              HasSubstr("`t` of shape [-2, -4]"));
  EXPECT_THAT(error_with([](auto& tensor) {
                tensor["shape"] = {int64_t{1} << 60, 8};
              }),
              HasSubstr("`t` of shape [1152921504606846976, 8]"));
  EXPECT_THAT(error_with([](auto& tensor) { tensor["boxes"][1]["crc32c"].push_back(0); }),
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
  EXPECT_EQ(read_index(checkpoint).tensors.at("model.w").boxes[0].crc32c.size(), 3U);
  const auto weights = checkpoint / kWeightsFile;
  std::string bytes = read_file(weights);
  bytes[bytes.size() - 400 - 7] ^= 1;  // in the second
  overwrite(weights, bytes);

  const CheckpointReader saved(checkpoint, 0);
  const auto read = [&](int64_t offset, int64_t count) {
    return saved.read(layout::Box::range("model.w", {kElements}, {offset, offset + count}));
  };
  EXPECT_EQ(read(0, 1).item<float>(), 0);  // the file is open now
  const auto expect = [&](int64_t offset, int64_t count, int64_t most) {
    const int64_t before = bytes_read();
    EXPECT_TRUE(read(offset, count).equal(at::arange(offset, offset + count, at::kFloat)));
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
    EXPECT_THAT(message_of([&] { read(offset, count); }),
                HasSubstr("`model.w` in model.safetensors with checksum"))
        << offset;
  }
}

// Checkpoints of format 3 have one checksum for a whole slice.
TEST_F(Integrity, FormatThreeIsRead) {
  const auto checkpoint = save(1);
  make_format_three(checkpoint);
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
      for (auto& box : changed["tensors"]["model.w"]["boxes"]) box["file"] = name;
    });
    EXPECT_THAT(error_of_loading(checkpoint),
                HasSubstr("is damaged; got index.json that names `" + name +
                          "`, expected names of files in its folder"));
  }
  // A name that is not among the files.
  overwrite(checkpoint / kIndexFile, index);
  change_index(checkpoint,
               [](auto& changed) { changed["tensors"]["model.w"]["boxes"][0]["file"] = "other"; });
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

}  // namespace
}  // namespace troika::checkpoint
