// Data sets that are read from files, and the errors for wrong files.
#include <gmock/gmock.h>
#include <zlib.h>

#include <fstream>

#include "tests/support/errors.h"
#include "troika/base/file.h"
#include "troika/base/random.h"
#include "troika/base/temporary_folder.h"
#include "troika/data/byte_text.h"
#include "troika/data/cifar.h"
#include "troika/data/idx.h"
#include "troika/data/make_dataset.h"

namespace troika::data {
namespace {

using testing::ElementsAre;

void put(const std::filesystem::path& path, const std::string& content) {
  write_file_atomically(path, content);
}

// CIFAR records: label bytes, then 3072 pixels of the value given.
std::string record(std::initializer_list<int> labels, int pixel) {
  std::string bytes;
  for (const int label : labels) bytes += static_cast<char>(label);
  return bytes + std::string(3072, static_cast<char>(pixel));
}

std::string big_endian(std::initializer_list<uint32_t> words) {
  std::string bytes;
  for (const uint32_t word : words) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(word >> shift & 0xff);
  }
  return bytes;
}

std::string idx_images(uint32_t count, uint32_t height, uint32_t width) {
  std::string pixels(size_t{count} * height * width, '\0');
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<char>(i);
  return big_endian({0x803, count, height, width}) + pixels;
}

std::string idx_labels(const std::string& labels) {
  return big_endian({0x801, static_cast<uint32_t>(labels.size())}) + labels;
}

std::string gzipped(const std::string& content) {
  const TemporaryFolder folder;
  const auto path = folder / "x.gz";
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
  gzclose(file);
  return read_file(path);
}

TEST(Cifar10, ReadsTheTrainingFilesThatExistInOrder) {
  const TemporaryFolder folder;
  put(folder / "data_batch_4.bin", record({7}, 3));
  put(folder / "data_batch_2.bin", record({0}, 1) + record({9}, 2));
  put(folder / "test_batch.bin", record({5}, 4));
  const auto images = read_cifar10(folder.path(), Split::train);
  EXPECT_EQ(images.classes, 10);
  EXPECT_EQ(images.shape, (ImageShape{3, 32, 32}));
  EXPECT_THAT(images.labels, ElementsAre(0, 9, 7));
  ASSERT_EQ(images.pixels.size(), 3u * 3072);
  EXPECT_EQ(images.pixels[0], 1);
  EXPECT_EQ(images.pixels[3071], 1);
  EXPECT_EQ(images.pixels[3072], 2);
  EXPECT_EQ(images.pixels.back(), 3);
  EXPECT_THAT(read_cifar10(folder.path(), Split::train, 1).labels, ElementsAre(0));
  EXPECT_THAT(read_cifar10(folder.path(), Split::train, 9).labels, ElementsAre(0, 9, 7));
  EXPECT_THAT(read_cifar10(folder.path(), Split::validation).labels, ElementsAre(5));
}

TEST(Cifar10, NamesTheFileThatIsWrong) {
  const TemporaryFolder folder;
  const std::string path = folder.path().string();
  EXPECT_ERROR(read_cifar10(folder.path(), Split::train), ErrorKind::usage,
               "[data] no data_batch_1.bin to data_batch_5.bin in " + path +
                   " (unpack https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz and give the "
                   "folder with the .bin files)");
  EXPECT_ERROR(read_cifar10(folder.path(), Split::validation), ErrorKind::usage,
               "[data] no test_batch.bin in " + path +
                   " (unpack https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz and give the "
                   "folder with the .bin files)");
  put(folder / "data_batch_1.bin", record({1}, 0));
  put(folder / "data_batch_2.bin", record({1}, 0) + std::string(1000, 'x'));
  EXPECT_ERROR(read_cifar10(folder.path(), Split::train), ErrorKind::usage,
               "[data] " + path +
                   "/data_batch_2.bin is short or no CIFAR file; got 4073 bytes, expected a "
                   "multiple of 3073");
  put(folder / "data_batch_2.bin", "");
  EXPECT_ERROR(read_cifar10(folder.path(), Split::train), ErrorKind::usage,
               "[data] " + path +
                   "/data_batch_2.bin is short or no CIFAR file; got 0 bytes, expected a multiple "
                   "of 3073");
  put(folder / "data_batch_2.bin", record({1}, 0) + record({10}, 0));
  EXPECT_ERROR(read_cifar10(folder.path(), Split::train), ErrorKind::usage,
               "[data] label of record 1 in " + path +
                   "/data_batch_2.bin; got 10, expected 0 to 9 (the file is corrupt or of another "
                   "data set)");
}

TEST(Cifar100, KeepsTheFineLabels) {
  const TemporaryFolder folder;
  put(folder / "train.bin", record({19, 99}, 1) + record({0, 4}, 2));
  const auto images = read_cifar100(folder.path(), Split::train);
  EXPECT_EQ(images.classes, 100);
  EXPECT_THAT(images.labels, ElementsAre(99, 4));
  EXPECT_EQ(images.pixels[3072], 2);
  EXPECT_ERROR(read_cifar100(folder.path(), Split::validation), ErrorKind::usage,
               "[data] no test.bin in " + folder.path().string() +
                   " (unpack https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz and give the "
                   "folder with the .bin files)");
  put(folder / "test.bin", record({1, 100}, 0));
  EXPECT_ERROR(read_cifar100(folder.path(), Split::validation), ErrorKind::usage,
               "[data] label of record 0 in " + folder.path().string() +
                   "/test.bin; got 100, expected 0 to 99 (the file is corrupt or of another data "
                   "set)");
}

// A folder with valid files of both splits, which tests then damage.
class Idx : public testing::Test {
 protected:
  Idx() {
    put(folder_ / "train-images-idx3-ubyte", idx_images(3, 2, 4));
    put(folder_ / "train-labels-idx1-ubyte", idx_labels({2, 0, 1}));
    put(folder_ / "t10k-images-idx3-ubyte", idx_images(2, 2, 4));
    put(folder_ / "t10k-labels-idx1-ubyte", idx_labels({1, 0}));
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void expect_error(const std::string& message, Split split = Split::train) const {
    EXPECT_ERROR(read_idx(folder_.path(), split), ErrorKind::usage, message);
  }
  TemporaryFolder folder_;
};

TEST_F(Idx, IsReadPlainOrCompressed) {
  for (const bool compressed : {false, true}) {
    if (compressed) {
      std::filesystem::remove(folder_ / "train-images-idx3-ubyte");
      put(folder_ / "train-images-idx3-ubyte.gz", gzipped(idx_images(3, 2, 4)));
    }
    const auto images = read_idx(folder_.path(), Split::train);
    EXPECT_EQ(images.shape, (ImageShape{1, 2, 4}));
    EXPECT_EQ(images.classes, 3);
    EXPECT_THAT(images.labels, ElementsAre(2, 0, 1));
    ASSERT_EQ(images.pixels.size(), 24u);
    EXPECT_EQ(images.pixels[23], 23);
  }
  const auto validation = read_idx(folder_.path(), Split::validation);
  EXPECT_EQ(validation.classes, 3) << "as in training, though only 0 and 1 occur";
  EXPECT_THAT(validation.labels, ElementsAre(1, 0));
  const auto first = read_idx(folder_.path(), Split::train, 2);
  EXPECT_EQ(first.labels.size(), 2u);
  EXPECT_EQ(first.pixels.size(), 16u);
}

TEST_F(Idx, MissingFileIsNamed) {
  std::filesystem::remove(folder_ / "train-images-idx3-ubyte");
  expect_error("[data] no train-images-idx3-ubyte or train-images-idx3-ubyte.gz in " +
               folder_.path().string());
}

TEST_F(Idx, HeaderMustBeWholeAndRight) {
  const auto images = path("train-images-idx3-ubyte");
  put(images, "\x08\x03");
  expect_error("[data] " + images + " is too short for a header; got 2 bytes, expected >= 16");
  put(images, idx_labels("\1\2\3 and more than a header"));
  expect_error("[data] magic number of " + images + "; got 0x00000801, expected 0x00000803");
  put(images, big_endian({0x803, 3, 2, 0x7fffffff}));
  expect_error("[data] height or width in " + images + "; got 2147483647, expected 1 to 16384");
  put(images, big_endian({0x803, 0xffffffff, 16384, 16384}));
  expect_error("[data] " + images +
               " does not have the size in its header; got 16 bytes, expected "
               "1152921504338411536");
}

TEST_F(Idx, ContentMustMatchTheHeader) {
  const auto images = path("train-images-idx3-ubyte");
  const auto labels = path("train-labels-idx1-ubyte");
  put(images, idx_images(3, 2, 4).substr(0, 39));
  expect_error("[data] " + images +
               " does not have the size in its header; got 39 bytes, expected 40");
  put(images, idx_images(3, 2, 4) + "x");
  expect_error("[data] " + images +
               " does not have the size in its header; got 41 bytes, expected 40");
  put(images, idx_images(2, 2, 4));
  expect_error("[data] number of labels in " + labels + "; got 3, expected 2 as in " + images);
  put(labels, idx_labels(""));
  expect_error("[data] number of labels in " + labels + "; got 0, expected >= 1");
}

TEST_F(Idx, ValidationLabelsMustOccurInTraining) {
  put(folder_ / "t10k-labels-idx1-ubyte", idx_labels({0, 3}));
  expect_error("[data] label 1 in " + path("t10k-labels-idx1-ubyte") +
                   "; got 3, expected 0 to 2 as in training",
               Split::validation);
}

TEST_F(Idx, CompressedDataMustBeWhole) {
  std::filesystem::remove(folder_ / "train-labels-idx1-ubyte");
  const auto labels = path("train-labels-idx1-ubyte.gz");
  const std::string whole = gzipped(idx_labels({2, 0, 1}));
  put(labels, whole.substr(0, whole.size() - 3));
  expect_error("[data] " + labels +
               " is truncated or corrupt; got the end is missing after 11 bytes, expected a whole "
               "gzip file");
  std::string spoilt = whole;
  spoilt[spoilt.size() - 6] = static_cast<char>(spoilt[spoilt.size() - 6] ^ 1);  // of the checksum
  put(labels, spoilt);
  expect_error("[data] " + labels +
               " is truncated or corrupt; got incorrect data check after 11 bytes, expected a "
               "whole gzip file");
}

// Returns bytes with the values from `from` to `to` - 1. The files of the tests have 100 bytes,
// each with its position as value.
std::string counting(int from, int to) {
  std::string text;
  for (int i = from; i < to; ++i) text += static_cast<char>(i);
  return text;
}

class Text : public testing::Test {
 protected:
  Text() {
    put(folder_ / "a", counting(0, 30));
    put(folder_ / "b", counting(30, 100));
  }
  ByteText make(Split split, const ByteTextOptions& options) const {
    return {{folder_ / "a", folder_ / "b"}, split, options};
  }
  TemporaryFolder folder_;
};

TEST_F(Text, WindowsLieEndToEndAndTargetsAreTheNextByte) {
  const auto text = make(Split::train, {.context = 10, .validation_fraction = 0.2});
  EXPECT_EQ(text.size(), 7);
  EXPECT_EQ(text.num_classes(), 256);
  EXPECT_THAT(text.input_shape(), ElementsAre(10));
  const auto batch = text.load(std::vector<int64_t>{2, 0}, {});
  EXPECT_EQ(batch.size(), 2);
  const auto window = [](int64_t from) { return torch::arange(from, from + 10, torch::kLong); };
  EXPECT_TRUE(torch::equal(batch.inputs, torch::stack({window(20), window(0)})));
  EXPECT_TRUE(torch::equal(batch.targets, torch::stack({window(21), window(1)})));
  EXPECT_THROW(text.load(std::vector<int64_t>{7}, {}), CheckError);
}

TEST_F(Text, AllTrainingWindowsShiftTogetherEachEpoch) {
  const auto text = make(Split::train, {.context = 10, .validation_fraction = 0.2});
  std::set<int64_t> shifts;
  for (uint64_t epoch = 0; epoch < 200; ++epoch) {
    const auto batch = text.load(std::vector<int64_t>{0, 6}, epoch);
    const auto shift = batch.inputs[0][0].item<int64_t>();
    shifts.insert(shift);
    EXPECT_EQ(batch.inputs[1][0].item<int64_t>(), 60 + shift);
    EXPECT_EQ(batch.targets[1][9].item<int64_t>(), 70 + shift);
  }
  EXPECT_THAT(shifts, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));

  const auto still = make(Split::train, {.context = 10, .shift_each_epoch = false});
  EXPECT_EQ(still.load(std::vector<int64_t>{0}, 5).inputs[0][0].item<int64_t>(), 0);
}

TEST_F(Text, ValidationIsTheEndAndDoesNotMove) {
  const auto text = make(Split::validation, {.context = 10, .validation_fraction = 0.21});
  EXPECT_EQ(text.size(), 2);
  const auto batch = text.load(std::vector<int64_t>{0, 1}, 5);
  EXPECT_EQ(batch.inputs[0][0].item<int64_t>(), 79);
  EXPECT_EQ(batch.targets[1][9].item<int64_t>(), 99);
}

TEST_F(Text, BytesAreUnsigned) {
  put(folder_ / "high", std::string(8, '\xff'));
  const ByteText text({folder_ / "high"}, Split::train, {.context = 2, .validation_fraction = 0});
  EXPECT_EQ(text.load(std::vector<int64_t>{0}, {}).inputs.min().item<int64_t>(), 255);
}

TEST_F(Text, WindowsGoOnFromFileToFile) {
  put(folder_ / "empty", "");
  put(folder_ / "c", counting(100, 101));
  put(folder_ / "d", counting(101, 120));
  const ByteText text(
      {folder_ / "a", folder_ / "empty", folder_ / "b", folder_ / "c", folder_ / "d"}, Split::train,
      {.context = 40, .validation_fraction = 0});
  const auto batch = text.load(std::vector<int64_t>{0, 1}, {});
  EXPECT_TRUE(torch::equal(batch.inputs.flatten(), torch::arange(80, torch::kLong)));
  const ByteText end({folder_ / "b", folder_ / "c", folder_ / "d"}, Split::validation,
                     {.context = 21, .validation_fraction = 0.25});
  EXPECT_TRUE(torch::equal(end.load(std::vector<int64_t>{0}, {}).targets[0],
                           torch::arange(99, 120, torch::kLong)));
}

// Bytes of memory that this process shares with no other and no file (RssAnon of proc(5)).
int64_t private_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key;) {
    int64_t kibibytes = 0;
    if (key == "RssAnon:" && status >> kibibytes) return kibibytes * 1024;
  }
  return -1;
}

TEST_F(Text, TakesNoMemoryForTheFiles) {
  const std::string part(32 << 20, 'x');
  put(folder_ / "large", part);
  put(folder_ / "larger", part);
  const int64_t before = private_bytes();
  ASSERT_GT(before, 0);
  const ByteText text({folder_ / "large", folder_ / "larger"}, Split::train, {.context = 1024});
  int64_t sum = 0;
  for (int64_t i = 0; i < text.size(); ++i) {
    sum += text.load(std::vector<int64_t>{i}, {}).inputs[0][0].item<int64_t>();
  }
  EXPECT_EQ(sum, text.size() * 'x');
  EXPECT_LT(private_bytes() - before, 4 << 20) << "of 64 MiB of text";
}

TEST_F(Text, RefusesWhatGivesNoWindow) {
  const std::string a = (folder_ / "a").string();
  EXPECT_ERROR(make(Split::train, {.context = 46}), ErrorKind::usage,
               "[data] the training part of the text in " + a +
                   " and 1 more is too short for context 46; got 90 bytes, expected >= 92 (the "
                   "validation fraction is 0.1)");
  EXPECT_ERROR(make(Split::validation, {.context = 10}), ErrorKind::usage,
               "[data] the validation part of the text in " + a +
                   " and 1 more is too short for context 10; got 10 bytes, expected >= 11 (the "
                   "validation fraction is 0.1)");
  EXPECT_EQ(make(Split::train, {.context = 45}).size(), 1);
  EXPECT_ERROR(make(Split::train, {.context = 0}), ErrorKind::usage,
               "[data] context; got 0, expected >= 1");
  EXPECT_ERROR(make(Split::train, {.validation_fraction = 1}), ErrorKind::usage,
               "[data] validation fraction; got 1, expected a number from 0 to below 1");
  EXPECT_ERROR(ByteText({}, Split::train, {}), ErrorKind::usage,
               "[data] text needs at least one file; got none");
  EXPECT_ERROR(ByteText({folder_ / "a", "/no/such"}, Split::train, {}), ErrorKind::usage,
               "[base] cannot read /no/such; got No such file or directory");
}

TEST(MakeDataset, MakesEachByName) {
  const TemporaryFolder folder;
  put(folder / "train.bin", record({0, 1}, 1) + record({0, 2}, 1));
  put(folder / "data_batch_1.bin", record({1}, 1) + record({2}, 1));
  put(folder / "train-images-idx3-ubyte", idx_images(2, 3, 4));
  put(folder / "train-labels-idx1-ubyte", idx_labels({0, 1}));
  put(folder / "text", counting(0, 100));
  DataOptions options{.path = folder.path().string(), .train_samples = 1, .context = 10};
  struct Expected {
    std::string name;
    int64_t classes;
    std::vector<int64_t> shape;
  };
  for (const Expected& expected : std::initializer_list<Expected>{{"shapes", 10, {3, 32, 32}},
                                                                  {"cifar10", 10, {3, 32, 32}},
                                                                  {"cifar100", 100, {3, 32, 32}},
                                                                  {"idx", 2, {1, 3, 4}},
                                                                  {"text", 256, {10}}}) {
    options.name = expected.name;
    const bool reads_folder = expected.name != "shapes" && expected.name != "text";
    options.path = reads_folder ? folder.path().string() : "";
    options.files.clear();
    if (expected.name == "text") options.files = {(folder / "text").string()};
    const auto dataset = make_dataset(options, Split::train);
    EXPECT_EQ(dataset->size(), 1) << expected.name;
    EXPECT_EQ(dataset->num_classes(), expected.classes) << expected.name;
    EXPECT_EQ(dataset->input_shape(), expected.shape) << expected.name;
  }
  EXPECT_THAT(dataset_names(), ElementsAre("shapes", "shape_masks", "captions", "cifar10",
                                           "cifar100", "idx", "text"));
}

}  // namespace
}  // namespace troika::data
