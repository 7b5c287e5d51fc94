/* A window of a JPEG image by libjpeg-turbo: the C half of src/decode/jpeg.rs.
 *
 * libjpeg reports errors by longjmp. Every jump starts and ends inside one call from Rust, below its setjmp, so that
 * none ever crosses a Rust frame. Rust gives plain numbers and a buffer whose size it has checked against `plan`.
 *
 * Reading ends with the last line of the window. All lines before it have to pass the entropy decoder, but only those
 * of the window, and of them only the columns of the window, are transformed back to pixels.
 */
#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

/* Fancy upsampling of chroma looks one sample to each side, that is two pixels. A window that much wider has the same
 * pixels inside as the whole image. */
#define MARGIN 2

/* Each scan of a progressive file costs a pass over the whole image: a small file must not cost hours. Encoders write
 * about ten. */
#define SCANS_MAX 500

enum { OK = 0, TRUNCATED = 1, CORRUPT = 2 };

struct foresee_jpeg {
    struct jpeg_decompress_struct info;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    jmp_buf jump;
    int code;
    /* Whether entropy-coded data ended before the lines did, at a marker. */
    int starved;
    char message[JMSG_LENGTH_MAX];
};

struct foresee_jpeg_header {
    unsigned width, height, components;
};

struct foresee_jpeg_window {
    unsigned x, y, width, height;
};

static void on_error(j_common_ptr common) {
    struct foresee_jpeg *jpeg = common->client_data;
    if (jpeg->code == OK) jpeg->code = CORRUPT;
    common->err->format_message(common, jpeg->message);
    longjmp(jpeg->jump, 1);
}

/* Warnings are not errors, as in PIL: damaged data gives damaged pixels. */
static void on_message(j_common_ptr common, int level) {
    struct foresee_jpeg *jpeg = common->client_data;
    (void)level;
    common->err->num_warnings++;
    if (common->err->msg_code == JWRN_HIT_MARKER) jpeg->starved = 1;
}

static void on_output(j_common_ptr common) { (void)common; }

static void nothing(j_decompress_ptr info) { (void)info; }

/* All bytes are in memory from the start, so a wish for more is a truncated file. */
static boolean on_empty(j_decompress_ptr info) {
    struct foresee_jpeg *jpeg = info->client_data;
    jpeg->code = TRUNCATED;
    ERREXIT(info, JERR_INPUT_EOF);
    return FALSE;
}

static void on_skip(j_decompress_ptr info, long bytes) {
    if (bytes <= 0) return;
    if ((size_t)bytes > info->src->bytes_in_buffer) on_empty(info);
    info->src->next_input_byte += bytes;
    info->src->bytes_in_buffer -= (size_t)bytes;
}

static void on_progress(j_common_ptr common) {
    j_decompress_ptr info = (j_decompress_ptr)common;
    if (common->is_decompressor && info->input_scan_number > SCANS_MAX) ERREXIT(common, JERR_BAD_PROGRESSION);
}

static void connect(struct foresee_jpeg *jpeg) {
    jpeg->source.init_source = nothing;
    jpeg->source.fill_input_buffer = on_empty;
    jpeg->source.skip_input_data = on_skip;
    jpeg->source.resync_to_restart = jpeg_resync_to_restart;
    jpeg->source.term_source = nothing;
    jpeg->progress.progress_monitor = on_progress;
    jpeg->info.src = &jpeg->source;
    jpeg->info.progress = &jpeg->progress;
}

static int create(struct foresee_jpeg *jpeg) {
    jpeg->info.err = jpeg_std_error(&jpeg->errors);
    jpeg->errors.error_exit = on_error;
    jpeg->errors.emit_message = on_message;
    jpeg->errors.output_message = on_output;
    jpeg->info.client_data = jpeg;
    if (setjmp(jpeg->jump)) return jpeg->code;
    jpeg_create_decompress(&jpeg->info);
    connect(jpeg);
    return OK;
}

/* NULL when there is no memory. */
struct foresee_jpeg *foresee_jpeg_new(void) {
    struct foresee_jpeg *jpeg = calloc(1, sizeof *jpeg);
    if (jpeg == NULL || create(jpeg) == OK) return jpeg;
    jpeg_destroy_decompress(&jpeg->info);
    free(jpeg);
    return NULL;
}

void foresee_jpeg_free(struct foresee_jpeg *jpeg) {
    jpeg_destroy_decompress(&jpeg->info);
    free(jpeg);
}

const char *foresee_jpeg_message(const struct foresee_jpeg *jpeg) { return jpeg->message; }

/* Ends with the image at hand; a decoder without one stays as it is. */
void foresee_jpeg_close(struct foresee_jpeg *jpeg) {
    jpeg_abort_decompress(&jpeg->info);
    jpeg->source.next_input_byte = NULL;
    jpeg->source.bytes_in_buffer = 0;
}

/* Reads the header. The bytes have to stay until foresee_jpeg_close. */
int foresee_jpeg_open(struct foresee_jpeg *jpeg, const unsigned char *bytes, size_t len,
                      struct foresee_jpeg_header *header) {
    jpeg->code = OK;
    jpeg->starved = 0;
    if (setjmp(jpeg->jump)) return jpeg->code;
    jpeg->source.next_input_byte = bytes;
    jpeg->source.bytes_in_buffer = len;
    jpeg_read_header(&jpeg->info, TRUE);
    header->width = jpeg->info.image_width;
    header->height = jpeg->info.image_height;
    header->components = (unsigned)jpeg->info.num_components;
    return OK;
}

/* Widens the window by the margin, and starts at a column where libjpeg can. */
static void crop(j_decompress_ptr info, const struct foresee_jpeg_window *window, unsigned *left) {
    JDIMENSION start = window->x > MARGIN ? window->x - MARGIN : 0;
    JDIMENSION end = window->x + window->width + MARGIN;
    if (end > info->output_width) end = info->output_width;
    JDIMENSION width = end - start;
    if (width < info->output_width) jpeg_crop_scanline(info, &start, &width);
    *left = window->x - start;
}

/* Gets ready for a window that lies inside the image. Tells the pixels of a line, four bytes each, and how many of them
 * are left of the window. */
int foresee_jpeg_plan(struct foresee_jpeg *jpeg, const struct foresee_jpeg_window *window, unsigned *line_pixels,
                      unsigned *left) {
    j_decompress_ptr info = &jpeg->info;
    if (setjmp(jpeg->jump)) return jpeg->code;
    info->out_color_space = info->num_components == 4 ? JCS_CMYK : JCS_EXT_RGBX;
    jpeg_start_decompress(info);
    crop(info, window, left);
    *line_pixels = info->output_width;
    if (window->y > 0) jpeg_skip_scanlines(info, window->y);
    return OK;
}

/* Whether the end of the image has been read or comes later. No entropy-coded data looks like its marker, so what is
 * found behind the window is the file's. The search starts where it usually is. */
static int has_end(j_decompress_ptr info) {
    const unsigned char *bytes = info->src->next_input_byte;
    if (info->unread_marker == JPEG_EOI || jpeg_input_complete(info)) return 1;
    for (size_t len = info->src->bytes_in_buffer; len >= 2; len--) {
        if (bytes[len - 2] == 0xff && bytes[len - 1] == JPEG_EOI) return 1;
    }
    return 0;
}

/* Whether data ended in the middle of a scan at a marker that cannot be there. To go on with the file, as others do, would
 * be an error. At the end of the image, or at a restart, lines that are missing are grey. */
static int is_cut(const struct foresee_jpeg *jpeg) {
    int marker = jpeg->info.unread_marker;
    int is_restart = marker >= JPEG_RST0 && marker <= JPEG_RST0 + 7;
    return jpeg->starved && marker != 0 && marker != JPEG_EOI && !is_restart;
}

/* Reads `height` lines to `pixels`, which holds that many lines of the planned length. */
int foresee_jpeg_read(struct foresee_jpeg *jpeg, unsigned height, unsigned char *pixels) {
    j_decompress_ptr info = &jpeg->info;
    size_t line_bytes = (size_t)info->output_width * 4;
    if (setjmp(jpeg->jump)) return jpeg->code;
    for (unsigned y = 0; y < height;) {
        JSAMPROW lines[4];
        unsigned count = height - y < 4 ? height - y : 4;
        for (unsigned i = 0; i < count; i++) lines[i] = pixels + (y + i) * line_bytes;
        unsigned read = jpeg_read_scanlines(info, lines, count);
        if (read == 0) ERREXIT(info, JERR_CANT_SUSPEND);
        y += read;
    }
    if (is_cut(jpeg)) {
        snprintf(jpeg->message, sizeof jpeg->message, "data end at a marker 0x%02x", jpeg->info.unread_marker);
        return CORRUPT;
    }
    if (!has_end(info)) {
        strcpy(jpeg->message, "no end-of-image marker");
        return TRUNCATED;
    }
    return OK;
}
