// Correct programs with SM120's mma.sync: no report under any schedule, and the product of a plain
// loop, for every pair of elements and every lane that scales may lie in.
#include "device/emulator/test/scaled_mma_test_support.h"

namespace blockscale::emulator {
namespace {

template <class Form, int kThreadA = 0, int kThreadB = 0>
void expect_product(ScaledProduct<Form> product = {}) {
  const auto kernel = [&] {
    multiply_scaled<Form, kThreadA, kThreadB>(product.a, product.b, product.out.data());
  };
  for (const Options& options : {in_order(), random_order(1)}) {
    const Report report =
        launch({.block = {32}}, product.buffers(), compiled_for(120, options), kernel);
    EXPECT_TRUE(report.ok()) << report.text();
    EXPECT_EQ(product.wrong_values(), 0u)
        << format_traits(Form::kA).name << " x " << format_traits(Form::kB).name << ", scales "
        << Form::kScales << ", threads " << kThreadA << ", " << kThreadB;
  }
}

template <Format kA, Format... kB>
void expect_products_of() {
  (expect_product<F8f6f4<kA, kB>>(), ...);
  (expect_product<Mxf8f6f4<kA, kB>>(), ...);
}
template <Format... kElements>
void expect_products_of_pairs() {
  (expect_products_of<kElements, Format::e2m1, Format::e2m3, Format::e3m2, Format::e4m3,
                      Format::e5m2>(),
   ...);
}

TEST(CorrectScaledMma, EveryPair) {
  expect_products_of_pairs<Format::e2m1, Format::e2m3, Format::e3m2, Format::e4m3, Format::e5m2>();
}

TEST(CorrectScaledMma, SumsInF16) {
  expect_product<F8f6f4InF16<Format::e4m3, Format::e2m1>>();
  expect_product<F8f6f4InF16<Format::e3m2, Format::e5m2>>();
}

template <class Form>
void expect_products_of_threads() {
  expect_product<Form, 0, 0>();
  expect_product<Form, 0, 1>();
  expect_product<Form, 0, 2>();
  expect_product<Form, 0, 3>();
  expect_product<Form, 1, 0>();
  expect_product<Form, 1, 1>();
  expect_product<Form, 1, 2>();
  expect_product<Form, 1, 3>();
}

TEST(CorrectScaledMma, ScalesOfEveryThread) {
  expect_products_of_threads<Mxf8f6f4<Format::e4m3, Format::e2m3>>();
  expect_products_of_threads<Mxfp4>();
  expect_products_of_threads<Nvfp4>();
}

TEST(CorrectScaledMma, TheSignOfAUe4m3IsIgnored) {
  ScaledProduct<Nvfp4> product;
  for (uint32_t row = 0; row < kTileRows; row += 3) product.a.scale_words[row] |= 0x80008080u;
  for (uint32_t row = 0; row < kTileColumns; row += 2) product.b.scale_words[row] |= 0x00800000u;
  expect_product(product);
}

}  // namespace
}  // namespace blockscale::emulator
