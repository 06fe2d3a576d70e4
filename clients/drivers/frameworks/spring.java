// Spring's JdbcTemplate and @Transactional: the code of docs/frameworks.md.
import java.util.List;
import org.springframework.aop.framework.ProxyFactory;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.jdbc.datasource.DriverManagerDataSource;
import org.springframework.transaction.annotation.AnnotationTransactionAttributeSource;
import org.springframework.transaction.interceptor.TransactionInterceptor;
//@ the page's imports

class Spring {
    static void is(Object found, Object wanted, String what) {
        if (!found.equals(wanted)) {
            throw new AssertionError(what + ": " + found + " is not " + wanted);
        }
    }

    public static void main(String[] args) {
        String at = System.getenv("PGHOST") + ":" + System.getenv("PGPORT") + "/" + System.getenv("PGDATABASE");
        DriverManagerDataSource source = new DriverManagerDataSource("jdbc:postgresql://" + at, System.getenv("PGUSER"), "");
        JdbcTemplate jdbc = new JdbcTemplate(source);
        jdbc.execute("CREATE TABLE account (email text PRIMARY KEY)");
        jdbc.execute("SELECT queue.create('emails')");

        // What Spring's context does with the annotation.
        ProxyFactory factory = new ProxyFactory(new Accounts(jdbc));
        factory.addInterface(Registration.class);
        factory.addAdvice(new TransactionInterceptor(new DataSourceTransactionManager(source), new AnnotationTransactionAttributeSource()));
        Registration accounts = (Registration) factory.getProxy(Registration.class.getClassLoader());

        long job = accounts.register("ada@example.org");
        // The queue is full, so the transaction with the account has to roll back.
        jdbc.execute("SELECT queue.alter('emails', max_waiting => 1)");
        try {
            accounts.register("grace@example.org");
            throw new AssertionError("it should be refused");
        } catch (RuntimeException error) {
            is(jdbc.queryForList("SELECT email FROM account", String.class), List.of("ada@example.org"), "the accounts");
            is(jdbc.queryForList("SELECT job_id FROM queue.jobs WHERE queue_name = 'emails'", Long.class), List.of(job), "the jobs");
        }
        is(jdbc.queryForObject("SELECT payload->>'to' FROM queue.job(?)", String.class, job), "ada@example.org", "the payload");
    }
}

interface Registration {
    long register(String email);
}

//@ the page
