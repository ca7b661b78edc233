// Files of data sets: CIFAR, IDX plain and compressed, and text. The first byte of an input selects
// the format.
#include <zlib.h>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/input_file.h"
#include "troika/base/error.h"
#include "troika/base/temporary_folder.h"
#include "troika/data/byte_text.h"
#include "troika/data/cifar.h"
#include "troika/data/idx.h"

namespace troika::fuzz {

namespace {

enum Kind : char { kCifar10, kCifar100, kIdxImages, kIdxLabels, kText, kKinds };

std::string input_of(Kind kind, const std::string& content) {
  return std::string(1, kind) + content;
}

std::string big_endian(uint32_t value) {
  std::string bytes(4, '\0');
  for (size_t i = 0; i < 4; ++i) bytes[i] = static_cast<char>(value >> (24 - 8 * i));
  return bytes;
}

std::string images() {
  return big_endian(0x803) + big_endian(2) + big_endian(3) + big_endian(3) + std::string(18, 'p');
}
std::string labels() {
  return big_endian(0x801) + big_endian(2) + std::string("\1\2", 2);
}

std::string gzipped(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

}  // namespace

std::vector<std::string> seeds() {
  return {input_of(kCifar10, std::string(3073, '\3')),
          input_of(kCifar100, std::string(3074, '\3')),
          input_of(kIdxImages, images()),
          input_of(kIdxImages, gzipped(images())),
          input_of(kIdxLabels, labels()),
          input_of(kIdxLabels, gzipped(labels())),
          input_of(kText, std::string(200, 't'))};
}

void run(std::string_view input) {
  static const TemporaryFolder folder;
  if (input.empty()) return;
  const std::string content(input.substr(1));
  switch (static_cast<unsigned char>(input[0]) % kKinds) {
    case kCifar10:
      write_input(folder / "data_batch_1.bin", content);
      data::read_cifar10(folder.path(), data::Split::train);
      break;
    case kCifar100:
      write_input(folder / "train.bin", content);
      data::read_cifar100(folder.path(), data::Split::train);
      break;
    case kIdxImages:
    case kIdxLabels: {
      const bool is_images = static_cast<unsigned char>(input[0]) % kKinds == kIdxImages;
      write_input(folder / "train-images-idx3-ubyte", is_images ? content : images());
      write_input(folder / "train-labels-idx1-ubyte", is_images ? labels() : content);
      data::read_idx(folder.path(), data::Split::train);
      break;
    }
    default: {
      write_input(folder / "text", content);
      const data::ByteText text({folder / "text"}, data::Split::train, {.context = 16});
      const std::vector<int64_t> last{text.size() - 1};
      text.load(last, 1);
    }
  }
}

}  // namespace troika::fuzz
