import java.io.InputStream;
import java.io.OutputStream;
import java.net.HttpURLConnection;
import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Set;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.UnsupportedCallbackException;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerExtensionsValidatorCallback;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallback;

/** Has a broker let in what msk_judge.py lets in, which is at the URL of the option "judge". */
public class MskValidator implements AuthenticateCallbackHandler {
	private String judge;

	@Override
	public void configure(Map<String, ?> configs, String mechanism, List<AppConfigurationEntry> jaas) {
		judge = (String) jaas.get(0).getOptions().get("judge");
	}

	@Override
	public void close() {}

	@Override
	public void handle(Callback[] callbacks) throws UnsupportedCallbackException {
		for (Callback callback : callbacks) {
			if (callback instanceof OAuthBearerValidatorCallback)
				validate((OAuthBearerValidatorCallback) callback);
			else if (!(callback instanceof OAuthBearerExtensionsValidatorCallback))
				throw new UnsupportedCallbackException(callback);
		}
	}

	private void validate(OAuthBearerValidatorCallback callback) {
		String token = callback.tokenValue();
		try {
			HttpURLConnection connection = (HttpURLConnection) new URL(judge).openConnection();
			connection.setDoOutput(true);
			try (OutputStream out = connection.getOutputStream()) {
				out.write(token.getBytes(StandardCharsets.US_ASCII));
			}
			boolean good = connection.getResponseCode() == 200;
			try (InputStream in = good ? connection.getInputStream() : connection.getErrorStream()) {
				String words = new String(in.readAllBytes(), StandardCharsets.UTF_8);
				if (good)
					callback.token(new Accepted(token, words));
				else
					callback.error("Access denied: " + words, null, null);
			}
		} catch (Exception e) {
			callback.error("the judge: " + e, null, null);
		}
	}

	private record Accepted(String value, String principalName) implements OAuthBearerToken {
		@Override
		public Set<String> scope() { return Set.of(); }

		@Override
		public long lifetimeMs() { return System.currentTimeMillis() + 900_000; }

		@Override
		public Long startTimeMs() { return null; }
	}
}
