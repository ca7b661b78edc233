#include "troika/data/gzip.h"

#include <fmt/format.h>
#include <zlib.h>

#include "troika/base/error.h"
#include "troika/base/file.h"

namespace troika::data {

namespace {

// Owns zlib's state while one stream is decompressed.
class Inflater {
 public:
  explicit Inflater(const std::string& compressed) {
    constexpr int kGzipOnly = 16;  // added to the window bits, see zlib.h
    TROIKA_CHECK(inflateInit2(&stream_, MAX_WBITS + kGzipOnly) == Z_OK, "zlib starts");
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(compressed.data()));
    stream_.avail_in = static_cast<uInt>(compressed.size());
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  // Appends all that can be decompressed. Returns Z_STREAM_END if the stream was complete.
  int run(std::string* output) {
    std::string block(1 << 18, '\0');
    int status = Z_OK;
    while (status == Z_OK) {
      stream_.next_out = reinterpret_cast<Bytef*>(block.data());
      stream_.avail_out = static_cast<uInt>(block.size());
      status = inflate(&stream_, Z_NO_FLUSH);
      output->append(block.data(), block.size() - stream_.avail_out);
    }
    return status;
  }
  std::string problem() const { return stream_.msg ? stream_.msg : "the end is missing"; }

 private:
  z_stream stream_{};
};

}  // namespace

std::string read_maybe_gzip(const std::filesystem::path& path) {
  std::string content = read_file(path);
  if (!content.starts_with("\x1f\x8b")) return content;
  std::string output;
  Inflater inflater(content);
  if (inflater.run(&output) != Z_STREAM_END) {
    throw Error("data", ErrorKind::usage,
                {.what = fmt::format("{} is truncated or corrupt", path.string()),
                 .got = fmt::format("{} after {} bytes", inflater.problem(), output.size()),
                 .expected = "a whole gzip file"});
  }
  return output;
}

}  // namespace troika::data
